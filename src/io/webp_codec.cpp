#include <pardiff/core/check.h>
#include <webp/decode.h>
#include <webp/encode.h>
#include <webp/mux.h>

#include <memory>

#include "io/picture_codec.h"

namespace pardiff {
namespace {

constexpr std::string_view kListStart = "<rdf:li>", kListEnd = "</rdf:li>";

// What XML cannot have as it is.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else if (c == '\r') {
      result += "&#13;";
    } else if (code < 0x20 && c != '\n' && c != '\t') {
      result += "\xef\xbf\xbd";  // U+FFFD: XML has no name for it
    } else {
      result.push_back(c);
    }
  }
  return result;
}

std::string unescaped(std::string_view text) {
  constexpr std::pair<std::string_view, char> kNames[] = {{"&amp;", '&'},  {"&lt;", '<'},    {"&gt;", '>'},
                                                          {"&quot;", '"'}, {"&apos;", '\''}, {"&#13;", '\r'}};
  std::string result;
  while (!text.empty()) {
    std::size_t taken = 1;
    char c = text.front();
    for (const auto& [name, character] : kNames) {
      if (!text.starts_with(name)) continue;
      taken = name.size();
      c = character;
    }
    result.push_back(c);
    text.remove_prefix(taken);
  }
  return result;
}

// A list of "KEY: TEXT".
std::string xmp_of(const PictureText& text) {
  std::string xmp =
      "<x:xmpmeta xmlns:x=\"adobe:ns:meta/\"><rdf:RDF xmlns:rdf=\"http://www.w3.org/1999/02/22-rdf-syntax-ns#\">"
      "<rdf:Description rdf:about=\"\" xmlns:pardiff=\"urn:pardiff\"><pardiff:text><rdf:Seq>";
  for (const auto& [key, value] : text) xmp += text_of(kListStart, escaped(key), ": ", escaped(value), kListEnd);
  return text_of(xmp, "</rdf:Seq></pardiff:text></rdf:Description></rdf:RDF></x:xmpmeta>");
}

std::map<std::string, std::string> text_in_xmp(std::string_view xmp) {
  std::map<std::string, std::string> texts;
  const auto own = xmp.find("<pardiff:text>");
  if (own == std::string_view::npos) return texts;
  for (auto at = xmp.find(kListStart, own); at != std::string_view::npos; at = xmp.find(kListStart, at)) {
    at += kListStart.size();
    const auto end = xmp.find(kListEnd, at);
    if (end == std::string_view::npos) break;
    const auto entry = unescaped(xmp.substr(at, end - at));
    const auto colon = entry.find(": ");
    if (colon != std::string::npos) texts[entry.substr(0, colon)] = entry.substr(colon + 2);
  }
  return texts;
}

using Mux = std::unique_ptr<WebPMux, decltype(&WebPMuxDelete)>;

WebPData data_of(std::string_view bytes) { return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}; }

PictureContent read_webp(std::string_view bytes, const std::filesystem::path& path) {
  const auto data = data_of(bytes);
  PictureContent content;
  auto& image = content.image;
  if (WebPGetInfo(data.bytes, data.size, &image.width, &image.height) == 0) {
    fail_to_read_picture(path, "its header is damaged");
  }
  check_picture_size(image.width, image.height, path);
  image.rgb.resize(static_cast<std::size_t>(image.width) * static_cast<std::size_t>(image.height) * 3);
  if (WebPDecodeRGBInto(data.bytes, data.size, image.rgb.data(), image.rgb.size(), image.width * 3) == nullptr) {
    fail_to_read_picture(path, "it is truncated or damaged");
  }
  const Mux mux(WebPMuxCreate(&data, 0), WebPMuxDelete);
  if (!mux) fail_to_read_picture(path, "it is truncated or damaged");
  WebPData xmp = {};
  if (WebPMuxGetChunk(mux.get(), "XMP ", &xmp) == WEBP_MUX_OK) {
    content.text = text_in_xmp({reinterpret_cast<const char*>(xmp.bytes), xmp.size});
  }
  return content;
}

std::vector<unsigned char> write_webp(const Image& image, const PictureText& text, const std::filesystem::path& path) {
  check<UsageError>(image.width <= WEBP_MAX_DIMENSION && image.height <= WEBP_MAX_DIMENSION,
                    "cannot write the picture ", path.string(), ": ", image.width, " x ", image.height,
                    " pixels, and a WebP has at most ", WEBP_MAX_DIMENSION, " along a side. Write a PNG.");
  uint8_t* encoded = nullptr;
  const auto size = WebPEncodeLosslessRGB(image.rgb.data(), image.width, image.height, image.width * 3, &encoded);
  const std::unique_ptr<uint8_t, decltype(&WebPFree)> owner(encoded, WebPFree);
  if (size == 0) fail_to_write_picture(path, "libwebp cannot encode it");
  if (text.empty()) return {encoded, encoded + size};
  const Mux mux(WebPMuxNew(), WebPMuxDelete);
  const auto xmp = xmp_of(text);
  const WebPData picture = {encoded, size}, metadata = data_of(xmp);
  WebPData assembled = {};
  const bool done = mux && WebPMuxSetImage(mux.get(), &picture, 0) == WEBP_MUX_OK &&
                    WebPMuxSetChunk(mux.get(), "XMP ", &metadata, 0) == WEBP_MUX_OK &&
                    WebPMuxAssemble(mux.get(), &assembled) == WEBP_MUX_OK;
  if (!done) fail_to_write_picture(path, "libwebpmux cannot put it together");
  std::vector<unsigned char> bytes(assembled.bytes, assembled.bytes + assembled.size);
  WebPDataClear(&assembled);
  return bytes;
}

bool is_webp(std::string_view bytes) {
  return bytes.size() >= 12 && bytes.starts_with("RIFF") && bytes.substr(8, 4) == "WEBP";
}

}  // namespace

const PictureCodec& webp_codec() {
  static const PictureCodec codec = {"WebP", {".webp"}, is_webp, read_webp, write_webp};
  return codec;
}

}  // namespace pardiff
