// The stand-in for cuBLASLt: right products, and an order of sums that is promised only with a
// pinned algorithm.
#include <cublasLt.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace kvern::simt {
namespace {

uint16_t Bf16(float value) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);  // exact for what is used
}
float F32(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

std::vector<uint16_t> RandomBf16(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> digit(-127, 127);
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values) value = Bf16(static_cast<float>(digit(random)) / 97.0f);
  return values;
}

// out [rows, n] = x [rows, k] weight [n, k]^T, row-major: column-major out^T = weight x^T.
class LtTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cublasLtMatmulDescCreate(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
              CUBLAS_STATUS_SUCCESS);
    const int32_t transposed = CUBLAS_OP_T;
    cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                   sizeof(transposed));
    ASSERT_EQ(cublasLtMatmulPreferenceCreate(&preference_), CUBLAS_STATUS_SUCCESS);
    for (void** pointer : {&weight_, &x_, &out_}) {
      ASSERT_EQ(cudaMalloc(pointer, 1 << 20), cudaSuccess);
    }
    Copy(weight_, RandomBf16(kN * kK, 1));
    Copy(x_, RandomBf16(kMaxRows * kK, 2));
  }
  void TearDown() override {
    for (void* pointer : {weight_, x_, out_}) cudaFree(pointer);
    cublasLtMatmulPreferenceDestroy(preference_);
    cublasLtMatmulDescDestroy(desc_);
    cublasLtDestroy(handle_);
  }
  static void Copy(void* target, const std::vector<uint16_t>& values) {
    ASSERT_EQ(cudaMemcpy(target, values.data(), values.size() * 2, cudaMemcpyHostToDevice),
              cudaSuccess);
  }

  struct Layouts {
    explicit Layouts(uint64_t rows, cudaDataType_t out_type = CUDA_R_32F) {
      cublasLtMatrixLayoutCreate(&weight, CUDA_R_16BF, kK, kN, kK);
      cublasLtMatrixLayoutCreate(&x, CUDA_R_16BF, kK, rows, kK);
      cublasLtMatrixLayoutCreate(&out, out_type, kN, rows, kN);
    }
    ~Layouts() {
      for (cublasLtMatrixLayout_t layout : {weight, x, out}) cublasLtMatrixLayoutDestroy(layout);
    }
    cublasLtMatrixLayout_t weight = nullptr, x = nullptr, out = nullptr;
  };

  cublasStatus_t Multiply(const Layouts& l, const cublasLtMatmulAlgo_t* algo,
                          void* workspace = nullptr, size_t workspace_bytes = 0) {
    const float one = 1, zero = 0;
    return cublasLtMatmul(handle_, desc_, &one, weight_, l.weight, x_, l.x, &zero, out_, l.out,
                          out_, l.out, algo, workspace, workspace_bytes, nullptr);
  }
  std::vector<float> Row(int row) {
    std::vector<float> values(kN);
    EXPECT_EQ(cudaMemcpy(values.data(), static_cast<float*>(out_) + row * kN, kN * 4,
                         cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }
  // What the heuristic answers, within `workspace` bytes; at most kAsked.
  static constexpr int kAsked = 64;
  std::vector<cublasLtMatmulAlgo_t> Choices(const Layouts& l, uint32_t schemes,
                                            uint64_t workspace = 1 << 20) {
    cublasLtMatmulPreferenceSetAttribute(preference_, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                         &schemes, sizeof(schemes));
    cublasLtMatmulPreferenceSetAttribute(preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &workspace, sizeof(workspace));
    cublasLtMatmulHeuristicResult_t results[kAsked] = {};
    int returned = 0;
    EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(handle_, desc_, l.weight, l.x, l.out, l.out,
                                             preference_, kAsked, results, &returned),
              CUBLAS_STATUS_SUCCESS);
    std::vector<cublasLtMatmulAlgo_t> choices;
    for (int i = 0; i < returned; ++i) choices.push_back(results[i].algo);
    return choices;
  }
  static uint32_t Config(const cublasLtMatmulAlgo_t& algo,
                         cublasLtMatmulAlgoConfigAttributes_t attribute) {
    uint32_t value = 0;
    size_t written = 0;
    EXPECT_EQ(
        cublasLtMatmulAlgoConfigGetAttribute(&algo, attribute, &value, sizeof(value), &written),
        CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(written, sizeof(value));
    return value;
  }
  static uint32_t Splits(const cublasLtMatmulAlgo_t& algo) {
    return Config(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
  }
  static uint32_t Scheme(const cublasLtMatmulAlgo_t& algo) {
    return Config(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
  }

  static constexpr int kN = 40;
  static constexpr int kK = 200;
  static constexpr int kMaxRows = 100;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  void* weight_ = nullptr;
  void* x_ = nullptr;
  void* out_ = nullptr;
};

TEST_F(LtTest, ProductsAreRight) {
  const auto weight = RandomBf16(kN * kK, 1);
  const auto x = RandomBf16(kMaxRows * kK, 2);
  for (uint64_t rows : {1u, 5u, 100u}) {
    ASSERT_EQ(Multiply(Layouts(rows), nullptr), CUBLAS_STATUS_SUCCESS);
    const int last = static_cast<int>(rows) - 1;
    const std::vector<float> out = Row(last);
    for (int n = 0; n < kN; ++n) {
      double want = 0;
      for (int k = 0; k < kK; ++k) {
        want += static_cast<double>(F32(weight[static_cast<size_t>(n * kK + k)])) *
                static_cast<double>(F32(x[static_cast<size_t>(last * kK + k)]));
      }
      EXPECT_NEAR(out[static_cast<size_t>(n)], want, 1e-4) << rows << " rows, column " << n;
    }
  }
}

TEST_F(LtTest, ProductsAreRightInPartsToo) {
  Layouts l(5);
  ASSERT_EQ(Multiply(l, nullptr), CUBLAS_STATUS_SUCCESS);
  const std::vector<float> expected = Row(4);
  void* workspace = nullptr;
  ASSERT_EQ(cudaMalloc(&workspace, 1 << 20), cudaSuccess);
  for (const cublasLtMatmulAlgo_t& algo : Choices(l, CUBLASLT_REDUCTION_SCHEME_MASK)) {
    const bool reduced = Scheme(algo) != CUBLASLT_REDUCTION_SCHEME_NONE;
    EXPECT_EQ(Multiply(l, &algo), reduced ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(Multiply(l, &algo, workspace, 1 << 20), CUBLAS_STATUS_SUCCESS);
    const std::vector<float> row = Row(4);
    for (size_t n = 0; n < row.size(); ++n) EXPECT_NEAR(row[n], expected[n], 1e-4f);
  }
  cudaFree(workspace);
}

TEST_F(LtTest, TheSameRowDiffersWithTheBatchUnlessTheAlgorithmIsPinned) {
  ASSERT_EQ(Multiply(Layouts(1), nullptr), CUBLAS_STATUS_SUCCESS);
  const std::vector<float> alone = Row(0);
  ASSERT_EQ(Multiply(Layouts(64), nullptr), CUBLAS_STATUS_SUCCESS);
  EXPECT_NE(Row(0), alone);

  for (const cublasLtMatmulAlgo_t& pinned : Choices(Layouts(16), CUBLASLT_REDUCTION_SCHEME_NONE)) {
    ASSERT_EQ(Multiply(Layouts(1), &pinned), CUBLAS_STATUS_SUCCESS);
    const std::vector<float> pinned_alone = Row(0);
    for (uint64_t rows : {2u, 16u, 64u, 100u}) {
      ASSERT_EQ(Multiply(Layouts(rows), &pinned), CUBLAS_STATUS_SUCCESS);
      // Not even that is enough when it splits K.
      EXPECT_EQ(Row(0) == pinned_alone, Splits(pinned) == 1) << rows;
    }
  }
}

// A batch-invariant caller must leave out the reductions, look at the splits, and ask for all rows.
TEST_F(LtTest, AlgorithmsThatSplitComeFirstAndNotEachTakesAnyRows) {
  const Layouts usual(64);
  const auto all = Choices(usual, CUBLASLT_REDUCTION_SCHEME_MASK);
  ASSERT_GT(all.size(), 32u);
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_GT(Splits(all[i]), 1u);
    EXPECT_EQ(Scheme(all[i]), CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
  }
  // A workspace is what such a reduction takes.
  EXPECT_EQ(Scheme(Choices(usual, CUBLASLT_REDUCTION_SCHEME_MASK, 0)[0]),
            CUBLASLT_REDUCTION_SCHEME_NONE);

  const auto unreduced = Choices(usual, CUBLASLT_REDUCTION_SCHEME_NONE);
  ASSERT_FALSE(unreduced.empty());
  EXPECT_GT(Splits(unreduced[0]), 1u);
  const Layouts many(513);
  bool found = false;
  for (const cublasLtMatmulAlgo_t& algo : unreduced) {
    EXPECT_EQ(Scheme(algo), CUBLASLT_REDUCTION_SCHEME_NONE);
    if (found || Splits(algo) > 1) continue;
    found = true;  // the first that does not split
    cublasLtMatmulHeuristicResult_t result = {};
    const auto check = [&](const Layouts& l) {
      return cublasLtMatmulAlgoCheck(handle_, desc_, l.weight, l.x, l.out, l.out, &algo, &result);
    };
    EXPECT_EQ(check(usual), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(check(many), CUBLAS_STATUS_NOT_SUPPORTED);
    EXPECT_EQ(Multiply(many, &algo), CUBLAS_STATUS_NOT_SUPPORTED);
    // Nor does the library offer it there.
    for (const cublasLtMatmulAlgo_t& offered : Choices(many, CUBLASLT_REDUCTION_SCHEME_NONE)) {
      EXPECT_NE(Config(offered, CUBLASLT_ALGO_CONFIG_ID), Config(algo, CUBLASLT_ALGO_CONFIG_ID));
    }
  }
  EXPECT_TRUE(found);
}

TEST_F(LtTest, AHandleBelongsToItsDevice) {
  const Layouts l(4);
  const cublasLtMatmulAlgo_t algo = Choices(l, CUBLASLT_REDUCTION_SCHEME_NONE)[0];
  cublasLtMatmulHeuristicResult_t result = {};
  int returned = 0;
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(Multiply(l, &algo), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(handle_, desc_, l.weight, l.x, l.out, l.out, preference_,
                                           1, &result, &returned),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasLtMatmulAlgoCheck(handle_, desc_, l.weight, l.x, l.out, l.out, &algo, &result),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasLtDestroy(handle_), CUBLAS_STATUS_INVALID_VALUE);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(Multiply(l, &algo), CUBLAS_STATUS_SUCCESS);
}

TEST_F(LtTest, RefusesWhatTheRealOneRefuses) {
  Layouts wrong(4);
  const int64_t too_short = kK - 1;
  cublasLtMatrixLayoutSetAttribute(wrong.x, CUBLASLT_MATRIX_LAYOUT_LD, &too_short,
                                   sizeof(too_short));
  EXPECT_EQ(Multiply(wrong, nullptr), CUBLAS_STATUS_INVALID_VALUE);
  cublasLtMatmulAlgo_t rubbish = {};
  EXPECT_EQ(Multiply(Layouts(4), &rubbish), CUBLAS_STATUS_INVALID_VALUE);
  const int32_t short_value = 0;
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_TRANSA, &short_value, 2),
            CUBLAS_STATUS_INVALID_VALUE);
  // A float32 bias does not go with a bfloat16 result.
  const uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
  const int32_t type = CUDA_R_32F;
  cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
  cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof(type));
  EXPECT_EQ(Multiply(Layouts(4, CUDA_R_16BF), nullptr), CUBLAS_STATUS_NOT_SUPPORTED);
}

}  // namespace
}  // namespace kvern::simt
