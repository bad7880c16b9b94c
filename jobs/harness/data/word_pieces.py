"""A WordPiece tokenizer built from the training texts, for a model with random weights.

Words are split as by BERT's uncased tokenizer. The most frequent ones are tokens; another is spelled letter by letter,
so that a text of known letters has no unknown token. The same texts give the same vocabulary everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def tokenizer_of(texts: Iterable[str], vocab_size: int, length: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer of at most `vocab_size` tokens, letters excepted, for sequences of `length` tokens."""
    normalizer, cutter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    words = Counter(word for text in texts for word, _ in cutter.pre_tokenize_str(normalizer.normalize_str(text)))
    letters = sorted({letter for word in words for letter in word})
    frequent = sorted(words, key=lambda word: (-words[word], word))
    tokens = dict.fromkeys((*SPECIAL, *letters, *(f"##{letter}" for letter in letters)))
    tokens |= dict.fromkeys(frequent[: max(0, vocab_size - len(tokens))])
    made = Tokenizer(models.WordPiece(vocab={token: n for n, token in enumerate(tokens)}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer, made.decoder = normalizer, cutter, decoders.WordPiece()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_max_length=length,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
