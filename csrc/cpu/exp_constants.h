// The exponential of SwiGLU: e^x = 2^n * p(r), n = round(x / ln 2), r = x - n ln 2 with ln 2 in two parts (Cephes expf;
// error below 1.5 units in the last place). One set of constants, so that every instruction set gives the same bits.
#pragma once

namespace foreword {

// Beyond these bounds 1 + e^x is 1, or silu is below 1e-36 in size.
inline constexpr float kExpLowest = -86.0f;
inline constexpr float kExpHighest = 88.0f;
inline constexpr float kLog2E = 1.44269504088896341f;
inline constexpr float kLn2High = 0.693359375f;
inline constexpr float kLn2Low = -2.12194440e-4f;
inline constexpr float kRoundShift = 0x1.8p23f;  // adding it leaves round(x) in the low bits
inline constexpr float kExpPolynomial[] = {1.9875691500e-4f,
                                           1.3981999507e-3f,
                                           8.3334519073e-3f,
                                           4.1665795894e-2f,
                                           1.6666665459e-1f,
                                           5.0000001201e-1f,
                                           1.0f,
                                           1.0f};  // highest power first

}  // namespace foreword
