// Package tokenizer turns text into token ids and back as a model's own tokenizer does. It
// reads tokenizer.json, the format of Hugging Face's library tokenizers, and beside it
// tokenizer_config.json and chat_template.jinja, which transformers reads.
//
// A text goes through the stages that the file names, in this order:
//
//	added tokens    <|im_end|> and its like are cut out of the text first
//	normalizer      NFC, replacements
//	pre_tokenizer   cuts the text into pieces, words for the most part
//	model           each piece becomes token ids: BPE or WordLevel
//	post_processor  puts BOS and EOS around them
//	decoder         is the way back from ids to text
//
// # What is read
//
// Byte-level BPE as GPT-2, Llama 3, Qwen, DeepSeek and Mistral (since NeMo) have it, BPE
// over characters with a fallback to bytes as Llama 2, Gemma and TinyLlama have it, and
// WordLevel, which small test models use. A file that asks for anything else (WordPiece,
// Unigram, dropout, accents to be stripped) is refused with an error that names the field:
// a count of tokens that is silently wrong would be worse than none.
//
// # Why it is written here
//
// A client's counts have to agree with the server's to the token, so only an exact library
// would do, and one that go build alone installs. In November 2026 there was none:
// github.com/gomlx/go-huggingface reads SentencePiece models only, github.com/daulet/tokenizers
// links a Rust library that has to be downloaded, the ports of tiktoken know OpenAI's
// vocabularies only, and github.com/sugarme/tokenizer 0.3.0 panics over Qwen's and Llama 3's
// files, whose pattern has a look-ahead. The parts that are a library's work come
// from one: Unicode normal forms (golang.org/x/text), regular expressions with look-ahead
// (github.com/dlclark/regexp2), Jinja (github.com/nikolalohinski/gonja). The tests hold
// results to those of the Python library tokenizers 0.23.3 and of transformers 5.23.0.
//
// # kvferry's own
//
// [Own] is the tokenizer of kvferry's modelled models; own.go says how it is made. It is a
// tokenizer.json as well, [Tokenizer.WriteFile], which a fuzz test holds it to.
//
// # Limits
//
// Text is UTF-8; bytes that are not are read as U+FFFD, as Python reads them with
// errors="replace". Letters and digits are those of Unicode 16, like the Python library's.
// NFC is that of golang.org/x/text, Unicode 15: the few letters of scripts that came with
// 16 and are written in two parts (Tulu-Tigalari, Gurung Khema, Kirat Rai) are not joined.
// Fields truncation and padding are not followed: transformers overrides them in each call.
package tokenizer
