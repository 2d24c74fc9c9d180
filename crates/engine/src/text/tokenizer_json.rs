//! Reads `tokenizer.json` (and the added tokens of `tokenizer_config.json`) into the parts of a tokenizer.
//!
//! Only the shape that the Qwen families ship is accepted: NFC, splitting by patterns, byte-level BPE. Whatever else a
//! file asks for is refused by name, never ignored. Must not build a JSON tree of the vocabulary: that alone would cost
//! more memory than the finished tokenizer.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::bpe::{Arena, Bpe};
use super::error::TokenizerError;

const FILE: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";

/// Qwen3.6's file has 11 MB.
const MAX_FILE_BYTES: usize = 128 << 20;
/// Ids index tables, so a huge one would be a huge allocation; Qwen3.6 has 248,077.
const MAX_ID: u32 = 1 << 22;
const MAX_PATTERN_BYTES: usize = 4096;
const MAX_ADDED_TOKENS: usize = 1 << 16;

/// What the files say, checked.
pub(super) struct Parts {
    pub(super) bpe: Bpe,
    pub(super) added: Vec<AddedToken>,
    pub(super) nfc: bool,
    /// Regular expressions that split the text into words, applied one after the other.
    pub(super) patterns: Vec<String>,
}

/// A token that is matched in the text before anything else.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct AddedToken {
    #[serde(default)]
    pub(super) id: u32,
    pub(super) content: String,
    #[serde(default)]
    pub(super) special: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
}

#[derive(Deserialize)]
struct File {
    model: Model,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    decoder: Option<Value>,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    dropout: Option<f64>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    vocab: Vocabulary,
    merges: Merges,
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    added_tokens_decoder: BTreeMap<String, AddedToken>,
}

/// Reads both files; `config` is the whole of `tokenizer_config.json` where there is one.
pub(super) fn read(file: &[u8], config: Option<&[u8]>) -> Result<Parts, TokenizerError> {
    check_size(FILE, file)?;
    let parsed: File = serde_json::from_slice(file).map_err(|e| json_error(FILE, &e))?;
    let File { model, added_tokens, normalizer, pre_tokenizer, post_processor, decoder } = parsed;
    check_model(&model)?;
    let nfc = match normalizer.as_ref().map(kind_of) {
        None => false,
        Some("NFC") => true,
        Some(_) => return Err(unsupported("normalizer", normalizer.as_ref(), "NFC or none")),
    };
    check_byte_level("post_processor", post_processor.as_ref())?;
    check_byte_level("decoder", decoder.as_ref())?;
    let patterns = patterns(pre_tokenizer.as_ref())?;
    let bpe = Bpe::new(&model.vocab.tokens, &model.vocab.ids, &model.merges.0, model.ignore_merges)?;
    let added = added_tokens_of(added_tokens, config)?;
    Ok(Parts { bpe, added, nfc, patterns })
}

fn check_size(what: &'static str, file: &[u8]) -> Result<(), TokenizerError> {
    if file.len() > MAX_FILE_BYTES {
        return Err(TokenizerError::TooLarge { what, found: file.len(), limit: MAX_FILE_BYTES });
    }
    Ok(())
}

fn check_model(model: &Model) -> Result<(), TokenizerError> {
    let set = |text: &Option<String>| text.as_ref().is_some_and(|t| !t.is_empty());
    let found = if model.kind.as_deref().is_some_and(|kind| kind != "BPE") {
        format!("model.type {:?}", model.kind.as_deref().unwrap_or_default())
    } else if model.dropout.is_some_and(|p| p != 0.0) {
        "model.dropout".to_owned()
    } else if set(&model.unk_token) {
        "model.unk_token".to_owned()
    } else if set(&model.continuing_subword_prefix) {
        "model.continuing_subword_prefix".to_owned()
    } else if set(&model.end_of_word_suffix) {
        "model.end_of_word_suffix".to_owned()
    } else if model.byte_fallback {
        "model.byte_fallback".to_owned()
    } else {
        return Ok(());
    };
    Err(TokenizerError::Unsupported { file: FILE, found, expected: "a plain byte-level BPE" })
}

/// The `type` of a component.
fn kind_of(component: &Value) -> &str {
    component.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn unsupported(what: &str, found: Option<&Value>, expected: &'static str) -> TokenizerError {
    let found: String = found.map_or("null".to_owned(), Value::to_string).chars().take(200).collect();
    TokenizerError::Unsupported { file: FILE, found: format!("{what} {found}"), expected }
}

/// Post-processor and decoder must be the byte-level ones: any other would add tokens or text.
fn check_byte_level(what: &str, component: Option<&Value>) -> Result<(), TokenizerError> {
    match component.map(kind_of) {
        None | Some("ByteLevel") => Ok(()),
        Some(_) => Err(unsupported(what, component, "ByteLevel")),
    }
}

/// The splitting patterns before the byte-level step.
fn patterns(pre_tokenizer: Option<&Value>) -> Result<Vec<String>, TokenizerError> {
    const EXPECTED: &str = "a Sequence of Split (Regex, Isolated, not inverted) and a last ByteLevel \
                            (add_prefix_space false, use_regex false)";
    let refuse = || unsupported("pre_tokenizer", pre_tokenizer, EXPECTED);
    let steps =
        pre_tokenizer.and_then(|p| p.get("pretokenizers")).and_then(Value::as_array).ok_or_else(refuse)?;
    let (last, splits) = steps.split_last().ok_or_else(refuse)?;
    let is_false = |step: &Value, key: &str| step.get(key).and_then(Value::as_bool) == Some(false);
    if kind_of(last) != "ByteLevel" || !is_false(last, "add_prefix_space") || !is_false(last, "use_regex") {
        return Err(refuse());
    }
    let mut patterns = Vec::with_capacity(splits.len());
    for split in splits {
        let regex =
            split.get("pattern").and_then(|p| p.get("Regex")).and_then(Value::as_str).ok_or_else(refuse)?;
        let isolated = split.get("behavior").and_then(Value::as_str) == Some("Isolated");
        if kind_of(split) != "Split" || !isolated || !is_false(split, "invert") {
            return Err(refuse());
        }
        if regex.len() > MAX_PATTERN_BYTES {
            let (what, found) = ("a pattern of pre_tokenizer", regex.len());
            return Err(TokenizerError::TooLarge { what, found, limit: MAX_PATTERN_BYTES });
        }
        patterns.push(regex.to_owned());
    }
    Ok(patterns)
}

/// The added tokens of both files. A token is special if either file says so: a template's control token must not
/// become text because one of them was written by another tool.
fn added_tokens_of(
    tokens: Vec<AddedToken>,
    config: Option<&[u8]>,
) -> Result<Vec<AddedToken>, TokenizerError> {
    let mut by_id: BTreeMap<u32, AddedToken> = BTreeMap::new();
    let mut add = |file: &'static str, token: AddedToken| -> Result<(), TokenizerError> {
        check_added(file, &token)?;
        let known = by_id.entry(token.id).or_insert_with(|| token.clone());
        if known.content != token.content {
            let reason = format!("token {} is both {:?} and {:?}", token.id, known.content, token.content);
            return Err(TokenizerError::Inconsistent { file, reason });
        }
        known.special |= token.special;
        Ok(())
    };
    for token in tokens {
        add(FILE, token)?;
    }
    if let Some(config) = config {
        check_size(CONFIG, config)?;
        let parsed: Config = serde_json::from_slice(config).map_err(|e| json_error(CONFIG, &e))?;
        for (id, token) in parsed.added_tokens_decoder {
            let id = id.parse().map_err(|_| TokenizerError::Inconsistent {
                file: CONFIG,
                reason: format!("added_tokens_decoder has the key {id:?}, which is not a token id"),
            })?;
            add(CONFIG, AddedToken { id, ..token })?;
        }
    }
    if by_id.len() > MAX_ADDED_TOKENS {
        let (what, found) = ("the list of added tokens", by_id.len());
        return Err(TokenizerError::TooLarge { what, found, limit: MAX_ADDED_TOKENS });
    }
    Ok(by_id.into_values().collect())
}

fn check_added(file: &'static str, token: &AddedToken) -> Result<(), TokenizerError> {
    let found = if token.id > MAX_ID {
        format!("the id {} of {:?}", token.id, token.content)
    } else if token.content.is_empty() {
        format!("the empty added token {}", token.id)
    } else if token.single_word || token.lstrip || token.rstrip {
        format!("single_word, lstrip or rstrip of {:?}", token.content)
    } else if token.normalized && !token.content.is_ascii() {
        format!("normalized of {:?}", token.content)
    } else {
        return Ok(());
    };
    Err(TokenizerError::Unsupported { file, found, expected: "an added token that is matched as it stands" })
}

fn json_error(file: &'static str, error: &serde_json::Error) -> TokenizerError {
    TokenizerError::Json { file, reason: error.to_string() }
}

/// `model.vocab`: token bytes in file order, and their ids.
struct Vocabulary {
    tokens: Arena,
    ids: Vec<u32>,
}

/// `model.merges`: left and right part in turn. Files write a merge as `"a b"` or as `["a", "b"]`.
struct Merges(Arena);

/// A string that is borrowed from the file unless it has escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for Vocabulary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Vocabulary;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from token to id")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocabulary, A::Error> {
                let mut vocabulary = Vocabulary { tokens: Arena::default(), ids: Vec::new() };
                while let Some((Text(token), id)) = map.next_entry::<Text<'de>, u32>()? {
                    if id > MAX_ID {
                        return Err(A::Error::custom(format!("the id {id} of {token:?} is beyond {MAX_ID}")));
                    }
                    push(&mut vocabulary.tokens, &token)?;
                    vocabulary.ids.push(id);
                }
                Ok(vocabulary)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

impl<'de> Deserialize<'de> for Merges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Merges;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of merges")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merges, A::Error> {
                let mut merges = Merges(Arena::default());
                while let Some(Pair(left, right)) = list.next_element::<Pair<'de>>()? {
                    push(&mut merges.0, &left)?;
                    push(&mut merges.0, &right)?;
                }
                Ok(merges)
            }
        }
        deserializer.deserialize_seq(List)
    }
}

struct Pair<'a>(Cow<'a, str>, Cow<'a, str>);

impl<'de> Deserialize<'de> for Pair<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Pair<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"left right\" or [\"left\", \"right\"]")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Pair<'de>, E> {
                let (left, right) = text
                    .split_once(' ')
                    .ok_or_else(|| E::custom(format!("the merge {text:?} has no space")))?;
                Ok(Pair(Cow::Owned(left.to_owned()), Cow::Owned(right.to_owned())))
            }

            fn visit_borrowed_str<E: serde::de::Error>(self, text: &'de str) -> Result<Pair<'de>, E> {
                let (left, right) = text
                    .split_once(' ')
                    .ok_or_else(|| E::custom(format!("the merge {text:?} has no space")))?;
                Ok(Pair(Cow::Borrowed(left), Cow::Borrowed(right)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<Pair<'de>, A::Error> {
                let mut part =
                    |at| pair.next_element::<Text<'de>>()?.ok_or_else(|| A::Error::invalid_length(at, &self));
                let (Text(left), Text(right)) = (part(0)?, part(1)?);
                Ok(Pair(left, right))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// Appends a token written in the byte-level alphabet, as bytes.
fn push<E: serde::de::Error>(arena: &mut Arena, token: &str) -> Result<(), E> {
    if let Some(bad) = token.chars().find(|&c| byte_of(c).is_none()) {
        return Err(E::custom(format!("{token:?} has {bad:?}, which is not in the byte-level alphabet")));
    }
    arena.push(token.chars().filter_map(byte_of));
    Ok(())
}

/// GPT-2's alphabet: printable Latin-1 stands for itself, the 68 other bytes are moved to U+0100 and up, in order.
fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7F) as u8),
        0x143 => Some(0xAD),
        _ => None,
    }
}
