"""Instructions about words, letters and the language."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from isentrope.tasks.instructions.base import Count
from isentrope.tasks.instructions.text import fold, languages

SENTENCES = {
    "ar": "هذه رسالة قصيرة باللغة العربية حتى نعرف أن النص مكتوب بلغة واضحة ومفهومة للجميع.",
    "bg": "Това е кратък текст на български език, за да се вижда на кой език е написан отговорът.",
    "bn": "এটি বাংলা ভাষায় লেখা একটি ছোট বার্তা যাতে বোঝা যায় উত্তরটি কোন ভাষায় লেখা হয়েছে।",
    "de": "Dies ist ein kurzer Text in deutscher Sprache, damit man sieht, wie die Antwort geschrieben ist.",
    "fa": "این یک متن کوتاه به زبان فارسی است تا معلوم شود که پاسخ به چه زبانی نوشته شده است.",
    "fi": "Tämä on lyhyt suomenkielinen teksti, josta näkee, millä kielellä vastaus on kirjoitettu.",
    "gu": "આ ગુજરાતી ભાષામાં લખેલો એક ટૂંકો સંદેશ છે જેથી જવાબ કઈ ભાષામાં છે તે સમજાય.",
    "hi": "यह हिन्दी भाषा में लिखा गया एक छोटा संदेश है ताकि पता चले कि उत्तर किस भाषा में है।",
    "it": "Questo è un breve testo in lingua italiana, perché si veda come è scritta la risposta.",
    "kn": "ಇದು ಕನ್ನಡ ಭಾಷೆಯಲ್ಲಿ ಬರೆದ ಒಂದು ಚಿಕ್ಕ ಸಂದೇಶ, ಉತ್ತರ ಯಾವ ಭಾಷೆಯಲ್ಲಿದೆ ಎಂದು ತಿಳಿಯಲು.",
    "ko": "이것은 대답이 어떤 언어로 쓰였는지 알 수 있도록 한국어로 쓴 짧은 글입니다.",
    "mr": "हा मराठी भाषेत लिहिलेला एक छोटा संदेश आहे, म्हणजे उत्तर कोणत्या भाषेत आहे ते कळेल.",
    "ne": "यो नेपाली भाषामा लेखिएको एउटा छोटो सन्देश हो, जसले गर्दा उत्तर कुन भाषामा छ भन्ने थाहा हुन्छ।",
    "pa": "ਇਹ ਪੰਜਾਬੀ ਭਾਸ਼ਾ ਵਿੱਚ ਲਿਖਿਆ ਇੱਕ ਛੋਟਾ ਸੁਨੇਹਾ ਹੈ ਤਾਂ ਜੋ ਪਤਾ ਲੱਗੇ ਕਿ ਜਵਾਬ ਕਿਸ ਭਾਸ਼ਾ ਵਿੱਚ ਹੈ।",
    "pt": "Este é um texto curto em língua portuguesa, para que não haja dúvida de como a resposta foi escrita.",
    "ru": "Это короткий текст на русском языке, чтобы было видно, на каком языке написан ответ.",
    "sw": "Huu ni ujumbe mfupi ulioandikwa kwa lugha ya Kiswahili ili ijulikane jibu limeandikwa kwa lugha gani.",
    "ta": "பதில் எந்த மொழியில் உள்ளது என்பதை அறிய இது தமிழ் மொழியில் எழுதப்பட்ட ஒரு சிறிய செய்தி.",
    "te": "సమాధానం ఏ భాషలో ఉందో తెలుసుకోవడానికి ఇది తెలుగు భాషలో రాసిన ఒక చిన్న సందేశం.",
    "th": "นี่คือข้อความสั้นที่เขียนเป็นภาษาไทยเพื่อให้รู้ว่าคำตอบเขียนด้วยภาษาอะไร",
    "ur": "یہ اردو زبان میں لکھا ہوا ایک مختصر پیغام ہے تاکہ معلوم ہو کہ جواب کس زبان میں لکھا گیا ہے۔",
    "vi": "Đây là một đoạn văn ngắn bằng tiếng Việt để biết câu trả lời được viết bằng ngôn ngữ nào.",
    "en": "This is a short text in the English language, so that one sees how the answer is written.",
}


@dataclass(frozen=True)
class Keywords:
    """Each keyword occurs, in any case, also within a longer word."""

    keywords: Sequence[str]

    def __call__(self, response: str) -> bool:
        text = fold(response)
        return all(fold(word) in text for word in self.keywords)

    def met(self) -> str:
        return "Here are " + ", ".join(word.upper() for word in self.keywords)

    def missed(self) -> tuple[str, ...]:
        return tuple(" ".join(w[:-1] if w == word else "and" for w in self.keywords) for word in self.keywords)


@dataclass(frozen=True)
class KeywordFrequency:
    """A keyword occurs less than, or at least, that often, in any case, also within longer words."""

    keyword: str
    frequency: int
    relation: str
    count: Count = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", Count(self.relation, self.frequency))

    def __call__(self, response: str) -> bool:
        return self.count.holds(fold(response).count(fold(self.keyword)))

    def met(self) -> str:
        return "Well: " + self._times(self.count.met())

    def missed(self) -> tuple[str, ...]:
        wrong = self.count.missed()
        return () if wrong is None else ("Well: " + self._times(wrong),)

    def _times(self, count: int) -> str:
        return ", ".join((self.keyword.upper(), self.keyword)[i % 2] for i in range(count))


@dataclass(frozen=True)
class ForbiddenWords:
    """None of the words occurs as a word of its own, in any case; within longer words they may."""

    forbidden_words: Sequence[str]

    def __call__(self, response: str) -> bool:
        found = (re.escape(word) for word in self.forbidden_words)
        return re.search(rf"(?<!\w)(?:{'|'.join(found)})(?!\w)", response, re.IGNORECASE) is None

    def met(self) -> str:
        return "Fine: " + " ".join(f"xx{word}xx" for word in self.forbidden_words)

    def missed(self) -> tuple[str, ...]:
        return tuple(f"Fine,{word.upper()}-like." for word in self.forbidden_words)


@dataclass(frozen=True)
class LetterFrequency:
    """A letter, or another character, occurs less than, or at least, that often, in any case."""

    letter: str
    let_frequency: int
    let_relation: str
    count: Count = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", Count(self.let_relation, self.let_frequency))

    def __call__(self, response: str) -> bool:
        return self.count.holds(response.lower().count(self.letter.lower()))

    def met(self) -> str:
        return "1 " + self._times(self.count.met())

    def missed(self) -> tuple[str, ...]:
        wrong = self.count.missed()
        return () if wrong is None else ("1 " + self._times(wrong),)

    def _times(self, count: int) -> str:
        return "".join((self.letter.upper(), self.letter)[i % 2] for i in range(count))


@dataclass(frozen=True)
class Language:
    """The response is in a language, given as a two-letter code. See `text.languages`; what cannot be told is not."""

    language: str

    def __call__(self, response: str) -> bool:
        return languages(response)[:1] == [self.language]

    def met(self) -> str:
        return SENTENCES[self.language]

    def missed(self) -> tuple[str, ...]:
        return ("12345 !?", *(text for code, text in SENTENCES.items() if code != self.language))
