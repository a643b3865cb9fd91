# What docs/debugging.md shows of cuda-gdb, for docs/debugging/main.cu.
set pagination off
set confirm off
set breakpoint pending on
set cuda break_on_launch application
set trace-commands on
run
info cuda kernels
info cuda threads
break tile.cu:25
continue
print i0
print x_tile[0]
cuda block (0,0,0) thread (5,3,0)
print first_b + ty
print x_tile[ty][tx]
print sum
delete
continue
