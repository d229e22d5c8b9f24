#include <pardiff/core/check.h>

#include <array>
#include <csetjmp>
#include <cstdlib>

// clang-format off
#include <cstdio>  // before jpeglib.h, which needs FILE
#include <jpeglib.h>
// clang-format on

#include "io/picture_codec.h"

namespace pardiff {
namespace {

constexpr int kQuality = 95;
constexpr std::size_t kLongestComment = 65'533;  // a marker's length field counts itself and has 16 bits

// libjpeg, too, reports errors by a long jump: functions that call setjmp hold plain values only.
struct JpegError {
  jpeg_error_mgr manager = {};
  std::jmp_buf jump = {};
  std::array<char, JMSG_LENGTH_MAX> message = {};
};

void on_error(j_common_ptr codec) {
  auto* const error = reinterpret_cast<JpegError*>(codec->err);
  codec->err->format_message(codec, error->message.data());
  std::longjmp(error->jump, 1);
}

// A warning (level -1) means damaged data, which libjpeg would fill up with grey.
void on_message(j_common_ptr codec, int level) {
  if (level < 0) on_error(codec);
}

jpeg_error_mgr* prepared(JpegError& error) {
  auto* const manager = jpeg_std_error(&error.manager);
  manager->error_exit = on_error;
  manager->emit_message = on_message;
  return manager;
}

struct Reader {
  JpegError error;
  jpeg_decompress_struct jpeg = {};

  Reader() { jpeg.err = prepared(error); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() { jpeg_destroy_decompress(&jpeg); }
};

bool read_header(Reader& reader, const unsigned char* bytes, std::size_t size) {
  if (setjmp(reader.error.jump) != 0) return false;
  jpeg_create_decompress(&reader.jpeg);
  jpeg_mem_src(&reader.jpeg, bytes, size);
  jpeg_save_markers(&reader.jpeg, JPEG_COM, 0xffff);
  jpeg_read_header(&reader.jpeg, TRUE);
  reader.jpeg.out_color_space = JCS_RGB;
  return true;
}

bool read_rows(Reader& reader, unsigned char* rgb) {
  if (setjmp(reader.error.jump) != 0) return false;
  jpeg_start_decompress(&reader.jpeg);
  while (reader.jpeg.output_scanline < reader.jpeg.output_height) {
    JSAMPROW row = rgb + static_cast<std::size_t>(reader.jpeg.output_scanline) * reader.jpeg.output_width * 3;
    jpeg_read_scanlines(&reader.jpeg, &row, 1);
  }
  jpeg_finish_decompress(&reader.jpeg);
  return true;
}

// A comment is "KEY: TEXT", one that goes on with the text of the comment before "KEY+: TEXT".
std::map<std::string, std::string> text_in(const jpeg_decompress_struct& jpeg) {
  std::map<std::string, std::string> texts;
  for (const auto* marker = jpeg.marker_list; marker != nullptr; marker = marker->next) {
    if (marker->marker != JPEG_COM) continue;
    const std::string comment(reinterpret_cast<const char*>(marker->data), marker->data_length);
    const auto colon = comment.find(": ");
    auto key = colon == std::string::npos ? std::string("Comment") : comment.substr(0, colon);
    const auto text = colon == std::string::npos ? comment : comment.substr(colon + 2);
    if (key.ends_with('+') && texts.contains(key.substr(0, key.size() - 1))) {
      key.pop_back();
      texts[key] += text;
    } else {
      texts[key] = text;
    }
  }
  return texts;
}

PictureContent read_jpeg(std::string_view bytes, const std::filesystem::path& path) {
  Reader reader;
  if (!read_header(reader, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size())) {
    fail_to_read_picture(path, reader.error.message.data());
  }
  check_picture_size(reader.jpeg.image_width, reader.jpeg.image_height, path);
  PictureContent content;
  content.image.width = static_cast<int>(reader.jpeg.image_width);
  content.image.height = static_cast<int>(reader.jpeg.image_height);
  content.image.rgb.resize(std::size_t{reader.jpeg.image_width} * reader.jpeg.image_height * 3);
  content.text = text_in(reader.jpeg);  // libjpeg drops the comments with the last row
  if (!read_rows(reader, content.image.rgb.data())) fail_to_read_picture(path, reader.error.message.data());
  return content;
}

struct Writer {
  JpegError error;
  jpeg_compress_struct jpeg = {};
  unsigned char* bytes = nullptr;  // of malloc
  unsigned long size = 0;          // NOLINT(google-runtime-int): libjpeg's

  Writer() { jpeg.err = prepared(error); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  ~Writer() {
    jpeg_destroy_compress(&jpeg);
    std::free(bytes);
  }
};

bool write_all(Writer& writer, const Image& image, const std::vector<std::string>& comments) {
  if (setjmp(writer.error.jump) != 0) return false;
  auto& jpeg = writer.jpeg;
  jpeg_create_compress(&jpeg);
  jpeg_mem_dest(&jpeg, &writer.bytes, &writer.size);
  jpeg.image_width = static_cast<JDIMENSION>(image.width);
  jpeg.image_height = static_cast<JDIMENSION>(image.height);
  jpeg.input_components = 3;
  jpeg.in_color_space = JCS_RGB;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, kQuality, TRUE);
  jpeg.comp_info[0].h_samp_factor = jpeg.comp_info[0].v_samp_factor = 1;  // colours in full resolution
  jpeg.optimize_coding = TRUE;
  jpeg.dct_method = JDCT_ISLOW;
  jpeg_start_compress(&jpeg, TRUE);
  for (std::size_t i = 0; i < comments.size(); ++i) {
    jpeg_write_marker(&jpeg, JPEG_COM, reinterpret_cast<const JOCTET*>(comments[i].data()),
                      static_cast<unsigned>(comments[i].size()));
  }
  while (jpeg.next_scanline < jpeg.image_height) {
    JSAMPROW row = const_cast<JSAMPROW>(image.rgb.data()) + std::size_t{jpeg.next_scanline} * jpeg.image_width * 3;
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  return true;
}

std::vector<std::string> comments_of(const PictureText& text) {
  std::vector<std::string> comments;
  for (const auto& [key, value] : text) {
    auto start = text_of(key, ": ");
    std::size_t at = 0;
    do {
      const auto part = value.substr(at, kLongestComment - start.size());
      comments.push_back(text_of(start, part));
      at += part.size();
      start = text_of(key, "+: ");
    } while (at < value.size());
  }
  return comments;
}

std::vector<unsigned char> write_jpeg(const Image& image, const PictureText& text, const std::filesystem::path& path) {
  check<UsageError>(image.width <= JPEG_MAX_DIMENSION && image.height <= JPEG_MAX_DIMENSION,
                    "cannot write the picture ", path.string(), ": ", image.width, " x ", image.height,
                    " pixels, and a JPEG has at most ", JPEG_MAX_DIMENSION, " along a side. Write a PNG.");
  const auto comments = comments_of(text);
  Writer writer;
  if (!write_all(writer, image, comments)) fail_to_write_picture(path, writer.error.message.data());
  return {writer.bytes, writer.bytes + writer.size};
}

bool is_jpeg(std::string_view bytes) { return bytes.starts_with("\xff\xd8\xff"); }

}  // namespace

const PictureCodec& jpeg_codec() {
  static const PictureCodec codec = {"JPEG", {".jpg", ".jpeg"}, is_jpeg, read_jpeg, write_jpeg};
  return codec;
}

}  // namespace pardiff
