#!/usr/bin/env python3
"""Writes tests/data/tokenizer_unicode.json: strings and the ids that the reference tokenizers give them.

The first half is chosen, one string or more for every rule that decides ids; the second half is drawn at random (fixed
seed) from all scripts. Needs transformers 5.24; run from the repository's root.
With a path to a program that reads "<bytes>\n<text>" records and prints a line of CLIP and a line of T5 ids for each
(77 and 512 long), compares random strings instead: scripts/make_tokenizer_data.py PROGRAM [ROUNDS [SEED]].
"""
import json
import random
import subprocess
import sys
import unicodedata

from transformers import CLIPTokenizer, T5Tokenizer

MODEL = "models/flux-shapes"
CLIP_LENGTH, T5_LENGTH = 77, 512

CHOSEN = [
    # white space and control characters
    "a\u0085b", "a\u00a0b", "a\u1680b\u2000c\u2009d\u202fe\u205ff\u3000g", "a\u2028b\u2029c", "a\u200bb", "a\u200db", "a\ufeffb",
    "a\u180eb", "\t\r\n\x0b\x0c", "a\x00b", "\x00", "a\x01b\x7fc\x9fd", "\x01\x02", "   ", "\u3000", "a \t\r\n b", "\ufffd", "a\ufffdb",
    # the mark that T5 writes for a space
    "\u2581", "a\u2581b", "\u2581\u2581a", "a\u2581", "a \u2581 b", "\u2581 a",
    # special tokens: exact, misspelt, made by lower-casing or by normalisation
    "<|startoftext|>", "x<|endoftext|>y", "<|endoftext|><|endoftext|>", "<|endoftext", "<<|endoftext|>>", "a<|STARTOFTEXT|>!!",
    "!!<|STARTOFTEXT|>!!", "<|EndOfText|>'s", "<|EndOfTexts|>!", "a <|ENDOFTEXT|><|ENDOFTEXT|>x", "<|\u017ftartoftext|>!", "</s>", "a</s>b", " </s> ", "<pad>a<unk>b", "<extra_id_0>",
    "x<extra_id_99>y", "<extra_id_100>", "<extra_id_03>", "<extra_id_3", "\uff1cpad\uff1ea", "\uff1c/s\uff1e", "\uff1cunk\uff1e\uff1cunk\uff1e", "\uff1cextra_id_3\uff1ehello",
    "</S>", "</w>", "<|>", "#version: 0.2",
    # contractions
    "it's don't I'll we've they're I'm she'd", "IT'S DON'T I'LL WE'VE THEY'RE I'M SHE'D", "'sun 'tis 'reef", "''s", "it\u2019s", "'", "a'b", "o'clock", "!'s!", "1's",
    # numbers
    "12345", "3.14", "\u0661\u0662\u0663", "\u2460\u2461", "\u2167", "\u00bd\u00bc\u00b2", "\uff11\uff12", "\u0be7\u0be8", "4k 8k", "1st", "\u3007",
    # case
    "\u0130stanbul I\u0131", "\u039f\u0394\u039f\u03a3 \u03a3", "STRASSE Stra\u00dfe \u1e9e", "\ufb01ne \ufb03", "\u01c5 \u01c8", "\u1f88\u1fb3", "\u24b6", "\u0415\u0401", "\U00010400",
    "\u1c89\u13a0\uab70", "\ua7cb\ua7dc\ua7da", "\u212a\u212b\u2126",
    # composition, marks in the wrong order, and marks that are newer than the reference's NFC
    "caf\u00e9 cafe\u0301", "a\u0323\u0307 a\u0307\u0323", "\u1100\u1161\u11a8 \uac01", "\uac00\u11a8", "q\u0307\u0323", "\u0958 \u0915\u093c", "\u0344 \u0308\u0301", "\u0f73\u0f71\u0f72", "\u2add\u0338",
    "\u0301a", "a\u0345\u0301", "\ufb2a\u05c1", "a\u0345\u08d3", "a\u08d3\u0334", "a\u1dfa\u0345", "a\U00010f46\u0334", "\U00011935\U00011930", "\U000110a5\U000110ba",
    "e\u0302\u0301 e\u0301\u0302", "o\u031b\u0323", "A\u030a",
    # letters and numbers newer than ICU 72, among others
    "!\u1c89!", "!\ua7cb!", "!\ua7ce!", "!\ua7d2!", "!\ua7dc!", "a\U000105c0b", "a\U00010d40b", "A\U00010d50b", "A\U00010d70b", "A\U00016ea0b", "A\U00016eb8b", "!\U0002ebf0!", "!\U0001ccf0!", "!\U0001e5f1!",
    "!\U00013460!", "!\U00016d40!", "!\U00018cff!", "!\U000323b0!",
    # T5 replaces a whole short grapheme cluster by its first character's replacement
    "\ufb01\u0301x", "\u2122\u0301", "\u00aa\u0301", "\u00aa\u0301b", "\u00aa\u0301\u0302", "\u00bd\u0301", "\u00aa\u0897b", "\u00aa\u1acfb", "\u00aa\u0301\U00010d69b", "\u00aa\u200db", "\u00aa\u0903b", "\u00b4\u0301 \u00a8",
    "\u0600\u00aa\u0301b", "\u0600\u00bdb", "a\u0600\u00aa\u0301", "\u00a9\u200d\u2122\u0301", "\u2605\u200d\u2122\u0301", "\u2600\u200d\u2122\u0301", "\u00a9\u0301\u200d\u2122\u0301", "\u2122\u2122\u0301", "\U0001fa57\u200d\u2122\u0301", "\U0001fad9\u200d\u2122\u0301",
    "\U0001f774\u200d\u2122\u0301", "\U000113d1\u00aa\u0301b", "\U00011a3a\u00aa\u0301b", "e\u0301\u0300x", "\u2165\u0308", "\u33a0\u0301", "\u0132\u0301j", "\u017f\u0307", "\r\n\r\nx", "\u200d\u00aa\u0301",
    # scripts
    "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0e44\u0e17\u0e22\u0e19\u0e35\u0e49\u0e33", "\u0627\u0644\u0639\u064e\u0631\u064e\u0628\u0650\u064a\u0629 \ufefb", "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd", "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8 \uff76\uff9e", "\ud55c\uad6d\uc5b4",
    "\u0440\u0443\u0441\u0441\u043a\u0438\u0439 \u0442\u0435\u043a\u0441\u0442", "\u10e5\u10d0\u10e0\u10d7\u10e3\u10da\u10d8", "\u1019\u103c\u1014\u103a\u1019\u102c", "\u0b95\u0bbf", "\u7b49\uf967\u2f00\U0002f800",
    # emoji
    "\U0001f98a\U0001f680", "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f3f3\ufe0f\u200d\U0001f308", "1\ufe0f\u20e3", "\U0001f1e9\U0001f1ea\U0001f1eb", "\U0001f44d\U0001f3fd", "\u263a\ufe0f", "\u2764\ufe0f\u200d\U0001f525",
    # the edges of planes and of the encoding
    "\ufffe\uffff", "\U0001ffff", "\U0010ffff", "\ue000", "\ud7ff", "\x7f\x80\u07ff\u0800\uffff\U00010000",
    # long words and cut prompts
    "x" * 300, "\u00e9" * 100, "word " * 600, "\U0001f98a" * 90, "a\u0301" * 300, "pneumonoultramicroscopicsilicovolcanoconiosis " * 20,
    "(masterpiece:1.2), [bad anatomy], <lora:foo:0.8> {curly}", "a photo of a cat, 35mm, f/1.8 \u2014 \u201cquoted\u201d \u2026", "https://example.org/a_b?c=d&e=%20f#g", "C++ != C# && x->y", "\\n \\t",
]

BLOCKS = [  # first, last of where random characters come from
    (0x20, 0x7E), (0x00, 0x1F), (0x7F, 0xA0), (0xA0, 0x24F), (0x250, 0x2FF), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F),
    (0x590, 0x5FF), (0x600, 0x6FF), (0x8A0, 0x8FF), (0x900, 0xDFF), (0xE00, 0xEFF), (0xF00, 0xFFF), (0x1000, 0x109F),
    (0x1100, 0x11FF), (0x1AB0, 0x1AFF), (0x1C80, 0x1C8F), (0x1D00, 0x1DFF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x20D0, 0x20F0),
    (0x2100, 0x2BFF), (0x2C00, 0x2DFF), (0x3000, 0x33FF), (0x4E00, 0x4E80), (0xA640, 0xA7FF), (0xAC00, 0xAC80), (0xF900, 0xFDFF),
    (0xFE00, 0xFFEF), (0x10000, 0x10FFF), (0x11000, 0x12000), (0x16A00, 0x16FFF), (0x1D400, 0x1D7FF), (0x1E000, 0x1E943),
    (0x1F000, 0x1FAFF), (0x2F800, 0x2FA1D), (0xE0000, 0xE01EF),
]
MARKS = [chr(c) for c in (*range(0x300, 0x370), *range(0x1DC0, 0x1E00), *range(0x8D0, 0x900), 0x200D, 0xFE0F, 0x20E3)]
SPACES = list(" \t\n\r\u0085\u00a0\u2003\u2028\u200b\u200d\u3000\u2581")
WORDS = "a photo of the Big red Cat sitting on mat in style 4k masterpiece it's don't I'LL <|endoftext|> </s> <extra_id_7>".split()


def random_text(draw):
    blocks = draw.sample(BLOCKS, draw.randrange(1, 4))
    parts = []
    for _ in range(draw.randrange(1, 12)):
        kind = draw.random()
        if kind < 0.2:
            parts.append(draw.choice(WORDS))
        elif kind < 0.35:
            parts.append(draw.choice(SPACES) * draw.choice((1, 1, 2)))
        else:
            first, last = draw.choice(blocks)
            for _ in range(draw.randrange(1, 6)):
                parts.append(chr(draw.randint(first, last)))
                if draw.random() < 0.2:
                    parts.append(draw.choice(MARKS))
    text = "".join(parts)
    return unicodedata.normalize("NFD", text) if draw.random() < 0.1 else text


class Reference:
    def __init__(self):
        self.clip = CLIPTokenizer.from_pretrained(f"{MODEL}/tokenizer")
        self.t5 = T5Tokenizer.from_pretrained(f"{MODEL}/tokenizer_2")

    def ids(self, texts, **padding):
        options = {"truncation": True, **padding}
        return (self.clip(texts, max_length=CLIP_LENGTH, **options).input_ids, self.t5(texts, max_length=T5_LENGTH, **options).input_ids)


def compare(program, rounds, seed):
    reference, draw, differences = Reference(), random.Random(seed), 0
    for _ in range(rounds):
        texts = [random_text(draw) for _ in range(4000)]
        records = b"".join(b"%d\n%s" % (len(data), data) for data in (text.encode() for text in texts))
        lines = subprocess.run([program], input=records, stdout=subprocess.PIPE, check=True).stdout.decode().splitlines()
        actual = [[int(token) for token in line.split()] for line in lines]
        for text, *pairs in zip(texts, zip(actual[0::2], actual[1::2]), zip(*reference.ids(texts, padding="max_length"))):
            if pairs[0] != pairs[1]:
                differences += 1
                print("differs:", ascii(text))
    print(f"{rounds * 4000} strings, {differences} differences")
    return 1 if differences else 0


def main():
    if len(sys.argv) > 1:
        rounds, seed = [int(number) for number in sys.argv[2:4]] + [5, 0][len(sys.argv[2:4]):]
        return compare(sys.argv[1], rounds, seed)
    draw = random.Random(20250101)
    texts = list(dict.fromkeys(CHOSEN + [random_text(draw) for _ in range(250)]))
    rows = [{"text": text, "clip": clip, "t5": t5} for text, clip, t5 in zip(texts, *Reference().ids(texts))]
    with open("tests/data/tokenizer_unicode.json", "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]\n")
    print(f"{len(rows)} strings")
    return 0


if __name__ == "__main__":
    sys.exit(main())
