// Which of a build's code a GPU runs, and what is said of a GPU that a build has none for: the compiler that made this
// build then compiles what is recommended.
#include "cuda/architectures.h"
#include "testing.h"

using namespace mnist::cuda;

namespace {

// Of every GPU that the project's code could run on.
constexpr int kGpus[] = {60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121};

void test_code() {
  const struct {
    const char* architectures;
    int gpu, capability;
    bool from_ptx = false;
  } cases[] = {
      {"90a-real", 90, 90},
      {"90a-real", 80, 0},
      {"90a-real", 100, 0},
      {"90a", 100, 0},  // PTX of 90a serves 9.0 alone
      {"80-real", 80, 80},
      {"80-real", 89, 80},
      {"80-real", 75, 0},
      {"80-real", 90, 0},
      {"86-real", 80, 0},
      {"80", 86, 80},
      {"80", 90, 80, true},
      {"80-virtual", 80, 80, true},
      {"80-virtual", 120, 80, true},
      {"80", 75, 0},
      {"80;90a-real", 120, 80, true},
      {"80-real;90a-real", 90, 90},
      {"80-real;90a-real", 100, 0},
      {"80-real;86-real;89-real", 89, 89},
      {"80-real;86-virtual", 89, 80},  // old machine code goes before newer PTX
      {"100-real;120", 121, 120},
      {"100-real;120", 110, 0},
      {"75-virtual", 75, 75, true},
      {"75-virtual", 90, 75, true},
      {"75;80-virtual", 90, 80, true},
      {"75-real;80;90a-real", 75, 75},
      {"75-real;80;90a-real", 89, 80},
      {"75-real;80;90a-real", 90, 90},
      {"75-real;80;90a-real", 70, 0},
      {"61-real;70-virtual", 62, 61},
      {"61-real;70-virtual", 60, 0},
      {"", 90, 0},
  };
  for (const auto& c : cases) {
    const Code code = code_for(c.architectures, c.gpu);
    testing::report(code.capability == c.capability && code.from_ptx == c.from_ptx,
                    std::string(c.architectures) + " on " + capability_text(c.gpu) + ": code for " +
                        std::to_string(code.capability) + (code.from_ptx ? ", PTX" : ""),
                    __FILE__, __LINE__);
  }
  CHECK(newest_code("75-real;120;90a-real") == 120);
  CHECK(newest_code("") == 0);
}

void test_remedies() {
  const std::string cuda13 = "75;80;86;87;88;89;90;100;110;103;120;121",
                    cuda12 = "50;52;53;60;61;62;70;72;75;80;86;87;89;90;100;101;120",
                    cuda12_4 = "50;60;61;70;75;80;86;89;90";
  CHECK(architectures_for(75, cuda13) == "75-real");
  CHECK(architectures_for(90, cuda13) == "90a-real");
  CHECK(architectures_for(90, cuda12_4) == "90a-real");
  CHECK(architectures_for(103, cuda13) == "103-real");
  CHECK(architectures_for(103, cuda12) == "101");
  CHECK(architectures_for(120, cuda12_4) == "90");
  CHECK(architectures_for(61, cuda12) == "61-real");
  CHECK(architectures_for(61, cuda13).empty());
  CHECK(architectures_for(52, cuda12).empty());
  CHECK(remedy_for(75, cuda13) == "build again with CMAKE_CUDA_ARCHITECTURES=75-real");
  CHECK(remedy_for(61, cuda13) == "build again with a CUDA 12 toolkit and CMAKE_CUDA_ARCHITECTURES=61-real");
  CHECK(remedy_for(52, cuda12) == "the oldest that the project has code for is 6.0");
  for (const auto& known : {cuda13, cuda12, cuda12_4})
    for (const int gpu : kGpus) {
      const std::string value = architectures_for(gpu, known);
      testing::report(value.empty() ? gpu < 75 && known == cuda13 : code_for(value, gpu).capability > 0,
                      "'" + value + "' is recommended for " + capability_text(gpu), __FILE__, __LINE__);
    }
}

#ifdef MNIST_NVCC
// One kernel for all that is recommended, in one call.
void test_remedies_compile() {
  std::string command =
      "\"" MNIST_NVCC "\" -std=c++20 -fatbin -o /dev/null \"-I" MNIST_SOURCE "/native/gpu\" \"-I" MNIST_SOURCE
      "/native/include\" \"" MNIST_SOURCE "/native/gpu/kernels/sgd.cu\"";
  for (const int gpu : kGpus) {
    std::string number = architectures_for(gpu, MNIST_NVCC_ARCHITECTURES);
    if (number.empty()) continue;
    const bool ptx = !number.ends_with("-real");
    number = number.substr(0, number.find('-'));
    command += " -gencode arch=compute_" + number + ",code=" + (ptx ? "compute_" : "sm_") + number;
  }
  testing::report(std::system(command.c_str()) == 0, command, __FILE__, __LINE__);
}
#endif

}  // namespace

int main() {
  test_code();
  test_remedies();
#ifdef MNIST_NVCC
  test_remedies_compile();
#endif
  return testing::finish();
}
