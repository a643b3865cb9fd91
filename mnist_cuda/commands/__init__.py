"""The commands, a module each: its docstring says what it does, `add_arguments(parser)` its flags, `run(args)` does it.

`run` returns the exit code. Only the module of the command that was chosen is imported, and what it needs to run only
when it runs. A command with commands of its own (`bench`, `data`) is a package with a table such as this one.
"""

# Name -> one line of help, in the order of `mnist-cuda --help`. The module has the name, with _ for -.
COMMANDS = {
    "train": "train the network and save it",
    "sweep": "train many models into one table",
    "evaluate": "test a saved model",
    "predict": "name the digit in pictures",
    "export": "write a saved model for PyTorch or as ONNX",
    "runs": "list runs, show, compare and remove them",
    "report": "a page of what runs learnt and benchmarks measured",
    "bench": "compare engines and other frameworks",
    "compare": "hold a step of engines against float64",
    "profile": "where a step's time goes",
    "engines": "list the engines: available here, or why not",
    "doctor": "what is here to run on, and what is wrong with it",
    "data": "fetch, verify and show data sets",
    "completion": "print the completion of these commands for a shell",
}
