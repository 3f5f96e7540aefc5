// A window over images with the channels last, one after another.
#pragma once

#include "../convolution.h"
#include "vectors.h"

namespace jquant {
namespace JQUANT_NAMESPACE {

struct WindowPlace {
  const Image& image;
  int64_t number, z, y, x;  // of the image, and in it

  WindowPlace(const Image& image, int64_t index) : image(image) {
    x = index % image.width.count;
    index /= image.width.count;
    y = index % image.height.count;
    index /= image.height.count;
    z = index % image.depth.count;
    number = index / image.depth.count;
  }

  JQUANT_INLINE void advance() {
    if (++x < image.width.count) return;
    x = 0;
    if (++y < image.height.count) return;
    y = 0;
    if (++z < image.depth.count) return;
    z = 0;
    ++number;
  }
};

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
