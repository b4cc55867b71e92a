"""A corpus in many scripts, made from seeds: the same 20,000 texts on every machine, so that only their ids are stored."""
import unicodedata

WORDS = {
    'latin': "the of and Zürich façade naïve coöperate Ærøskøbing żółw źdźbło přítel čeština şeker İstanbul ığdır győr árvíztűrő "
             "tükörfúrógép niño mañana corazón año São João coração ação ça où être Noël œuvre straße größer übermäßig søndag "
             "Ångström ðæt þing ħobż tiếng Việt Nguyễn phở đường được Hawaiʻi ŋgoni ǀxam ɓala Ɖovi Ǆ ǆ ﬁnance ﬂow ŉ ſtaub ẞ",
    'english': "I you he it's don't we'll they've I'M CAN'T Y'ALL O'Brien rock'n'roll 'twas dog. dogs' well-known e.g. U.S.A. "
               "re-entry state-of-the-art 'quoted' \"double\" (paren) [bracket] {brace} semi; colon: comma, what? no! ... — – - _ "
               "camelCase HTTPServer iPhone XMLHttpRequest snake_case SCREAMING_SNAKE kebab-case CamelCaseÉté ÉCOLE éCole",
    'cyrillic': "и в не на Россия привет мир Москва съёмка объём ёлка Йод чёрный українська їжак ґанок Беларусь ўсё српски љубав "
                "њега џеп ђак ћирилица Ѐ ѝ қазақ тілі өзбек ўқувчи монгол үг Ѳита ѣ ꙗко",
    'greek': "και το της Ελλάδα αθήνα ὦ ἄνδρες Ἀθηναῖοι λόγος Σίσυφος ΣΊΣΥΦΟΣ ᾳ ῥήτωρ ΐ ϊ ϐ ϑ ϕ Ω µ μ",
    'arabic': "في من على السلام عليكم مَرْحَبًا بِسْمِ ٱللَّٰهِ الرَّحْمٰنِ كتابٌ لا ﷺ ﻻ پارسی گربه چهار می‌خواهم اُردُو ٹھیک ہے ۱۲۳ ٤٥٦ ، ؛ ؟",
    'hebrew': "של את על שלום עולם בְּרֵאשִׁית בָּרָא אֱלֹהִים ירושלים צה״ל ג׳ירפה־ב ﬡ שּׁ ייִדיש ״ציטוט״",
    'devanagari': "के में है नमस्ते दुनिया भारत क्षत्रिय ज्ञान श्री हिन्दी संस्कृतम् ॐ १२३४ ड़ क़ ख़ र्‍क क्‍ष नेपाली मराठी ळ । ॥",
    'indic': "বাংলা ভাষা ক্ষ ড় তামিল தமிழ் மொழி க்ஷ స్వాగతం తెలుగు ಕನ್ನಡ മലയാളം ന്‍ ગુજરાતી ਪੰਜਾਬੀ ଓଡ଼ିଆ සිංහල ශ්‍රී",
    'thai': "ที่ และ การ สวัสดี ประเทศไทย กรุงเทพมหานคร น้ำ เพื่อน ๆ ฯลฯ ๑๒๓ ไม่เป็นไร ภาษาไทย ຂອບໃຈ ລາວ ខ្មែរ ភាសា မြန်မာ စာ བོད་ཡིག",
    'chinese': "的 是 我们 你好 世界 中华人民共和国 北京 機器學習 语言模型 一二三 龥 㐀 𠀀 𪜶 「引号」 《书名》 ，。！？ … 、 ： （括号） １２３ ＡＢＣ　全角",
    'japanese': "の は です こんにちは 世界 東京タワー カタカナ ひらがな ｶﾀｶﾅ コンピューター ヴァイオリン が が ぱ 々 〆 ー 〜 ・ 。 ①②③ ㈱ ㍿ 𛀀",
    'hangul': "은 는 이 안녕하세요 세계 대한민국 한국어 뷁 똠방각하 ㅋㅋㅋ ㅠㅠ ㄱ 각 각 가나다 힣 ᄀ ퟿ 漢字混用文",
    'emoji': "😀 😊 👍🏽 👩‍💻 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 ❤️ ☕ ✅ 🤦🏾‍♂️ 🧑‍🚀 #️⃣ 1️⃣ 🫠 🪿 ™ © ® ♀ ⚠️ 🏴󠁧󠁢󠁥󠁮󠁧󠁿 👁️‍🗨️ ‼️ ❣",
    'symbols': "€ £ ¥ ± × ÷ ≠ ≤ ∑∏∫ √2 ∞ → ⇒ ↔ α² x³ ½ ¾ Ⅳ ⅷ ㊿ ° ′ ″ § ¶ † ‡ • ‣ ‰ № ℃ ℵ ℝ 𝔸 𝒳 𝟘 𝟙 ⠓⠑ ░▒▓█ ╔═╗ ♔♚ ♫ "
               "¿ ¡ « » „ “ ” ‘ ’ ‚ ‹ › · ¨ ´ ` ^ ~ | \\ / $ + = < > @ # % & *",
    'digits': "0 1 12 123 1234 12345 123456 1234567 3.14159 1,000,000 2024-02-29 12:34:56 +49-30-1234 0xDEADBEEF 1e-10 50% $9.99 "
              "٠١٢٣ ०१२ ๐๑ ０１２ Ⅻ ²³ 1st 2nd 3D H2O v1.2.3 192.168.0.1 007 00000000",
    'code': "def f(x): return self.x[i] += 1 if (a && b) || !c { } ; // /* */ # -> => :: == != <= >= << >> ** ++ -- ?. ?? `${x}` "
            "<div class=\"a\"> </div> &nbsp; \\n \\t %s {0} @property lambda __init__ fooBar foo_bar FOO_BAR std::vector<int> "
            "SELECT * FROM t WHERE a='b'; $PATH ~/.bashrc ../.. C:\\dir https://example.org/?q=1&r=2#top a@b.co [x for x in y]",
}
SPACES = [' ', ' ', ' ', ' ', '', '  ', '   ', '\n', '\t', '\n\n', ' \n', '\n ', '\t\t', '    ', '\r\n', '\u00a0', '\u3000', '\u2009',
          '\u200b', '\u200d', '\ufeff', '\x0b', '\x0c', '\x1c', '\x85', '\u2028', ' ' * 7, ' ' * 33, '\n' * 3, '\n' * 5, '\r\n\r\n', '\t \t',
          '\n' * 40, ' ' * 100]
SPECIAL = ['<|im_start|>', '<|im_end|>', '<|endoftext|>', '<s>', '</s>', '<unk>', '<pad>', '<bos>', '<eos>', '<start_of_turn>', '<end_of_turn>',
           '<|eot_id|>', '<|begin_of_text|>', '<|end_of_text|>', '<|start_header_id|>', '<｜begin▁of▁sentence｜>', '<｜end▁of▁sentence｜>',
           '<｜fim▁begin｜>', '<|fim_prefix|>', '<fim_prefix>', '<fim_middle>', '<|fim_pad|>', '<|file_sep|>', '<|user|>', '<|assistant|>', '<|end|>',
           '<|system|>', '<think>', '</think>', '<tool_call>', '</tool_call>', '<turn|>', '<|turn>', '<0x0A>', '<0xE2>', '[PAD]', '[toxicity=0]',
           '<|START_OF_TURN_TOKEN|>', '<repo_name>', '<file_sep>', '<jupyter_start>', '<empty_output>', '<unused7>', '[multimodal]', '<|reserved_special_token_5|>',
           '<|vision_start|>', '>>TITLE<<', '▁', '▁▁', '<|im_', '|>', '<|', '<|im_end', '<mask>', '<image_soft_token>', 'ä¸Ń', 'Ġ', '<td>', '<h1>']
TABLE = ['', ' ', '\n', 'Hello<|im_end|>world', 'Hello <|im_end|> world', '<|im_end|>', ' <|im_end|>', '<|im_end|> ', '<|im_end|><|im_end|>',
         'Café déjà vu — 123 😊', unicodedata.normalize('NFD', 'Café déjà vu — 123 😊'), '</tool_call> word', '</tool_call>word', 'word</tool_call>',
         '<s> a</s> b <unk>c', 'a\x00b', '\u0344\u1e9b\u0323', 'ﷺ ㍿ ﬁ', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', '=' * 77, '-' * 200,
         '\u0301', 'e\u0301\u0301\u0301', "'s 's'S'ſ 'LL'Ll", '🏳️‍🌈' * 9, '\r', '\r\n\r', ' \r', '1 2  3   4', '١٢٣٤٥٦٧', '½¼¾1²', '\u2028x\u2029', '한' * 50]
BLOCKS = [(0x20, 0x7f), (0xa0, 0x250), (0x250, 0x370), (0x370, 0x400), (0x400, 0x530), (0x531, 0x600), (0x600, 0x700), (0x900, 0xd80), (0xe00, 0xf00),
          (0x1000, 0x1200), (0x1e00, 0x2100), (0x2100, 0x2c00), (0x3000, 0x3100), (0x3400, 0x3500), (0x4e00, 0x9fa6), (0xac00, 0xd7a4), (0xf900, 0xfb00),
          (0xfe00, 0xffe7), (0x10400, 0x10500), (0x1d400, 0x1d800), (0x1f300, 0x1f650), (0x20000, 0x20100)]

class Random:
    "A small generator with a fixed definition, so that no library's change moves the corpus."
    def __init__(self, seed): self.state = seed * 2 + 1

    def below(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) & (1 << 64) - 1
        return (self.state >> 33) % n

    def pick(self, items): return items[self.below(len(items))]

def assigned(code):
    "True for a character of Unicode 13 or older, which every Python and every engine knows."
    return unicodedata.ucd_3_2_0.category(chr(code)) != 'Cn'

def noise(rng):
    "Random characters of one block."
    low, high = rng.pick(BLOCKS)
    codes = (low + rng.below(high - low) for _ in range(rng.below(24)))
    return ''.join(chr(c) for c in codes if assigned(c))

def text(i):
    "The `i`-th text of the corpus."
    if i < len(TABLE): return TABLE[i]
    rng, scripts = Random(i), list(WORDS)
    main, kind = rng.pick(scripts), rng.below(8)
    parts = []
    for _ in range(1 + rng.below(16)):
        script = rng.pick(scripts) if kind == 0 or rng.below(6) == 0 else main
        word = noise(rng) if rng.below(24) == 0 else rng.pick(WORDS[script].split(' '))
        if kind == 1 and rng.below(3) == 0: word = rng.pick(SPECIAL)
        if kind == 2: word += rng.pick([' ', '', '.', ',', '!', "'s", '123', '"'])
        if rng.below(12) == 0: word = rng.pick([word.upper(), word.title(), word * 2, word[::-1], word + rng.pick(WORDS[script].split(' '))])
        parts += [word, rng.pick(SPACES) if kind == 3 or rng.below(10) == 0 else '' if script in ('chinese', 'japanese', 'thai') else ' ']
    line = ''.join(parts)
    if kind == 4: line = unicodedata.normalize('NFD', line)
    if kind == 5: line = unicodedata.normalize('NFC', line)
    return line if rng.below(4) == 0 else line.strip(' ')

def corpus(n=20_000): return [text(i) for i in range(n)]

def flags(i):
    "(add_special, parse_special) that text `i` is encoded with, so that all four cases are covered."
    return i % 2 == 0, i % 3 != 0
