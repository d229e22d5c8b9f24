#include <pardiff/core/check.h>
#include <png.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

#include "io/file_bytes.h"
#include "io/picture_codec.h"

namespace pardiff {
namespace {

// libpng reports errors by a long jump, which must not pass over C++ objects. So every function that calls setjmp holds
// plain values only; what needs destructors lives in the caller, and the message waits here.
struct PngError {
  std::array<char, 200> message = {};
};

void on_error(png_structp png, png_const_charp message) {
  auto* const error = static_cast<PngError*>(png_get_error_ptr(png));
  std::snprintf(error->message.data(), error->message.size(), "%s", message);
  std::longjmp(png_jmpbuf(png), 1);
}

void on_warning(png_structp, png_const_charp) {}

struct Reader {
  std::string_view bytes;
  PngError error;
  png_structp png = nullptr;
  png_infop info = nullptr;

  explicit Reader(std::string_view content) : bytes(content) {
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &error, on_error, on_warning);
    info = png != nullptr ? png_create_info_struct(png) : nullptr;
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() { png_destroy_read_struct(&png, &info, nullptr); }
};

void read_from_memory(png_structp png, png_bytep to, std::size_t count) {
  auto& bytes = *static_cast<std::string_view*>(png_get_io_ptr(png));
  if (bytes.size() < count) png_error(png, "the file is truncated");
  std::memcpy(to, bytes.data(), count);
  bytes.remove_prefix(count);
}

bool read_header(Reader& reader) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_set_read_fn(reader.png, &reader.bytes, read_from_memory);
  png_set_user_limits(reader.png, 1 << 20, 1 << 20);
  png_read_info(reader.png, reader.info);
  png_set_expand(reader.png);
  png_set_scale_16(reader.png);
  png_set_strip_alpha(reader.png);
  png_set_gray_to_rgb(reader.png);
  png_set_interlace_handling(reader.png);
  png_read_update_info(reader.png, reader.info);
  return true;
}

bool read_rows(Reader& reader, png_bytepp rows) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_read_image(reader.png, rows);
  png_read_end(reader.png, reader.info);
  return true;
}

std::string utf8_of_latin1(std::string_view text) {
  std::string utf8;
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x80) {
      utf8 += c;
    } else {
      utf8 += static_cast<char>(0xc0 | (code >> 6));
      utf8 += static_cast<char>(0x80 | (code & 0x3f));
    }
  }
  return utf8;
}

std::map<std::string, std::string> text_in(const Reader& reader) {
  std::map<std::string, std::string> texts;
  png_textp entries = nullptr;
  const int count = png_get_text(reader.png, reader.info, &entries, nullptr);
  for (int i = 0; i < count; ++i) {
    const png_text& entry = entries[i];
    const bool is_utf8 = entry.compression >= PNG_ITXT_COMPRESSION_NONE;
    const std::string_view value(entry.text, is_utf8 ? entry.itxt_length : entry.text_length);
    texts[utf8_of_latin1(entry.key)] = is_utf8 ? std::string(value) : utf8_of_latin1(value);
  }
  return texts;
}

struct Writer {
  std::vector<unsigned char> bytes;
  PngError error;
  png_structp png = nullptr;
  png_infop info = nullptr;

  Writer() {
    png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &error, on_error, on_warning);
    info = png != nullptr ? png_create_info_struct(png) : nullptr;
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  ~Writer() { png_destroy_write_struct(&png, &info); }
};

// An exception must not pass through libpng's C frames.
bool append(std::vector<unsigned char>& bytes, png_bytep from, std::size_t count) noexcept {
  try {
    bytes.insert(bytes.end(), from, from + count);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void write_to_memory(png_structp png, png_bytep from, std::size_t count) {
  auto& bytes = *static_cast<std::vector<unsigned char>*>(png_get_io_ptr(png));
  if (!append(bytes, from, count)) png_error(png, "out of memory");
}

bool write_all(Writer& writer, int width, int height, png_bytepp rows, png_textp text, int texts) {
  if (setjmp(png_jmpbuf(writer.png)) != 0) return false;
  png_set_write_fn(writer.png, &writer.bytes, write_to_memory, nullptr);
  png_set_IHDR(writer.png, writer.info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height), 8,
               PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (texts > 0) png_set_text(writer.png, writer.info, text, texts);
  png_write_info(writer.png, writer.info);
  png_write_image(writer.png, rows);
  png_write_end(writer.png, writer.info);
  return true;
}

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

std::vector<png_text> text_chunks(const PictureText& text) {
  std::vector<png_text> chunks;
  for (const auto& [key, value] : text) {
    png_text chunk = {};
    chunk.key = const_cast<char*>(key.c_str());
    chunk.text = const_cast<char*>(value.c_str());
    // tEXt means Latin-1, so anything beyond ASCII goes into iTXt, which means UTF-8.
    const bool is_plain = is_ascii(value);
    chunk.compression = is_plain ? PNG_TEXT_COMPRESSION_NONE : PNG_ITXT_COMPRESSION_NONE;
    (is_plain ? chunk.text_length : chunk.itxt_length) = value.size();
    chunks.push_back(chunk);
  }
  return chunks;
}

template <typename Bytes>
std::vector<png_bytep> rows_of(Bytes& rgb, int width, int height) {
  std::vector<png_bytep> rows;
  for (int y = 0; y < height; ++y) {
    rows.push_back(const_cast<png_bytep>(rgb.data()) +
                   static_cast<std::size_t>(y) * static_cast<std::size_t>(width) * 3);
  }
  return rows;
}

PictureContent read_png(std::string_view bytes, const std::filesystem::path& path) {
  Reader reader(bytes);
  if (reader.info == nullptr) fail_to_read_picture(path, "libpng does not start");
  if (!read_header(reader)) fail_to_read_picture(path, reader.error.message.data());
  const int64_t width = png_get_image_width(reader.png, reader.info);
  const int64_t height = png_get_image_height(reader.png, reader.info);
  check_picture_size(width, height, path);
  PictureContent content;
  content.image.width = static_cast<int>(width);
  content.image.height = static_cast<int>(height);
  content.image.rgb.resize(static_cast<std::size_t>(width * height * 3));
  if (png_get_rowbytes(reader.png, reader.info) != static_cast<std::size_t>(width) * 3) {
    fail_to_read_picture(path, "its pixels do not convert to 8-bit RGB");
  }
  auto rows = rows_of(content.image.rgb, content.image.width, content.image.height);
  if (!read_rows(reader, rows.data())) fail_to_read_picture(path, reader.error.message.data());
  content.text = text_in(reader);
  return content;
}

std::vector<unsigned char> write_png(const Image& image, const PictureText& text, const std::filesystem::path& path) {
  auto chunks = text_chunks(text);
  auto rows = rows_of(image.rgb, image.width, image.height);
  Writer writer;
  const bool done = writer.info != nullptr && write_all(writer, image.width, image.height, rows.data(), chunks.data(),
                                                        static_cast<int>(chunks.size()));
  if (!done) fail_to_write_picture(path, writer.error.message.data());
  return std::move(writer.bytes);
}

bool is_png(std::string_view bytes) {
  return bytes.size() >= 8 && png_sig_cmp(reinterpret_cast<png_const_bytep>(bytes.data()), 0, 8) == 0;
}

}  // namespace

const PictureCodec& png_codec() {
  static const PictureCodec codec = {"PNG", {".png"}, is_png, read_png, write_png};
  return codec;
}

}  // namespace pardiff
