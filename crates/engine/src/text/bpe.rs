//! Byte-level byte-pair encoding in compact tables: bytes of one word in, token ids out.
//!
//! The stock `tokenizers` model keeps every token twice as a `String` and every merge in a wide map: 165 MB for
//! Qwen3.6's 248,044 tokens. Here all token bytes lie in one arena, and both hash tables hold only 4-byte indices into
//! it. Must not know about special tokens, normalization or where words begin: `tokenizer` does that.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::error::TokenizerError;

/// File that the tables are read from, for messages.
const FILE: &str = "tokenizer.json";

/// Marks a byte without a token of its own, and "no symbol" in the linked list of a word.
const NONE: u32 = u32::MAX;

/// Byte strings one after the other in one allocation.
#[derive(Debug, Default)]
pub(super) struct Arena {
    bytes: Vec<u8>,
    /// `ends[i]` is where string `i` ends; it begins where its predecessor ends.
    ends: Vec<u32>,
}

impl Arena {
    /// Appends the string that the iterator yields. The files are bounded well below 4 GiB, so `u32` suffices.
    pub(super) fn push(&mut self, string: impl IntoIterator<Item = u8>) {
        self.bytes.extend(string);
        self.ends.push(self.bytes.len() as u32);
    }

    pub(super) fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)? as usize;
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        Some(&self.bytes[start..end])
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
    }
}

/// One merge; its index in [`Bpe::merges`] is its rank.
#[derive(Debug, Clone, Copy)]
struct Merge {
    left: u32,
    right: u32,
    merged: u32,
}

/// The tables of one vocabulary.
pub(super) struct Bpe {
    /// Token bytes by id; ids that the vocabulary skips are empty.
    tokens: Arena,
    by_bytes: HashTable<u32>,
    merges: Vec<Merge>,
    by_pair: HashTable<u32>,
    byte_ids: [u32; 256],
    ignore_merges: bool,
    hasher: DefaultHashBuilder,
}

/// Buffers that one call of [`Bpe::encode_word`] after the other uses again.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<(u32, u32)>>,
}

/// A piece of the word under construction, in a doubly linked list.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    id: u32,
    previous: u32,
    next: u32,
}

impl Bpe {
    /// `vocabulary` holds token bytes in file order and `ids` their ids; `merges` holds left and right parts in turn.
    pub(super) fn new(
        vocabulary: &Arena,
        ids: &[u32],
        merges: &Arena,
        ignore_merges: bool,
    ) -> Result<Bpe, TokenizerError> {
        let tokens = by_id(vocabulary, ids)?;
        let hasher = DefaultHashBuilder::default();
        let mut by_bytes: HashTable<u32> = HashTable::with_capacity(ids.len());
        let bytes_of = |id: u32| tokens.get(id as usize).unwrap_or_default();
        for &id in ids {
            let hash = hasher.hash_one(bytes_of(id));
            by_bytes.insert_unique(hash, id, |&id| hasher.hash_one(bytes_of(id)));
        }
        let mut byte_ids = [NONE; 256];
        for byte in 0..=u8::MAX {
            if let Some(id) = find(&by_bytes, &hasher, &tokens, &[byte]) {
                byte_ids[usize::from(byte)] = id;
            } else if !matches!(byte, 0xC0 | 0xC1 | 0xF5..) {
                return Err(inconsistent(format!("model.vocab has no token for the byte 0x{byte:02X}")));
            }
        }
        let mut bpe = Bpe {
            tokens,
            by_bytes,
            merges: Vec::with_capacity(merges.len() / 2),
            by_pair: HashTable::with_capacity(merges.len() / 2),
            byte_ids,
            ignore_merges,
            hasher,
        };
        bpe.add_merges(merges)?;
        Ok(bpe)
    }

    fn add_merges(&mut self, parts: &Arena) -> Result<(), TokenizerError> {
        let mut joined = Vec::new();
        for rank in 0..parts.len() / 2 {
            let (left, right) =
                (parts.get(2 * rank).unwrap_or_default(), parts.get(2 * rank + 1).unwrap_or_default());
            joined.clear();
            joined.extend_from_slice(left);
            joined.extend_from_slice(right);
            let id = |bytes: &[u8]| {
                self.id(bytes).ok_or_else(|| {
                    let text = String::from_utf8_lossy(bytes);
                    inconsistent(format!(
                        "merge {rank} needs the token {text:?}, which model.vocab does not have"
                    ))
                })
            };
            let merge = Merge { left: id(left)?, right: id(right)?, merged: id(&joined)? };
            self.merges.push(merge);
            let (rank, merges, hasher) = (rank as u32, &self.merges, &self.hasher);
            let pair_of = |rank: u32| (merges[rank as usize].left, merges[rank as usize].right);
            let pair = (merge.left, merge.right);
            let entry = self.by_pair.entry(
                hasher.hash_one(pair),
                |&other| pair_of(other) == pair,
                |&other| hasher.hash_one(pair_of(other)),
            );
            // A pair listed twice has its later rank, as in the stock implementation.
            entry.and_modify(|old| *old = rank).or_insert(rank);
        }
        Ok(())
    }

    /// Id of the token with exactly these bytes.
    pub(super) fn id(&self, bytes: &[u8]) -> Option<u32> {
        find(&self.by_bytes, &self.hasher, &self.tokens, bytes)
    }

    /// Bytes of a token; `None` for ids that the vocabulary does not have.
    pub(super) fn bytes(&self, id: u32) -> Option<&[u8]> {
        self.tokens.get(id as usize).filter(|bytes| !bytes.is_empty())
    }

    /// Bytes of the longest token.
    pub(super) fn longest_bytes(&self) -> usize {
        (0..self.tokens.len()).filter_map(|id| self.tokens.get(id)).map(<[u8]>::len).max().unwrap_or(0)
    }

    /// One past the largest id.
    pub(super) fn size(&self) -> usize {
        self.tokens.len()
    }

    fn rank(&self, left: u32, right: u32) -> Option<u32> {
        let hash = self.hasher.hash_one((left, right));
        let same = |&rank: &u32| {
            let merge = self.merges[rank as usize];
            (merge.left, merge.right) == (left, right)
        };
        self.by_pair.find(hash, same).copied()
    }

    /// Appends the ids of one word: of all adjacent pairs the one with the lowest rank is joined first, the leftmost of
    /// equals, until no pair has a rank. `O(n log n)` in the word's length.
    pub(super) fn encode_word(&self, word: &[u8], scratch: &mut Scratch, ids: &mut Vec<u32>) {
        if self.ignore_merges
            && let Some(id) = self.id(word)
        {
            ids.push(id);
            return;
        }
        let Scratch { symbols, queue } = scratch;
        symbols.clear();
        queue.clear();
        // A word is at most the bounded text, so positions fit u32.
        for &byte in word {
            let at = symbols.len() as u32;
            symbols.push(Symbol {
                id: self.byte_ids[usize::from(byte)],
                previous: at.wrapping_sub(1),
                next: at + 1,
            });
        }
        let Some(last) = symbols.last_mut() else { return };
        last.next = NONE;
        for at in 1..symbols.len() {
            self.offer(symbols, queue, at as u32 - 1);
        }
        while let Some(Reverse((rank, at))) = queue.pop() {
            let (left, merge) = (symbols[at as usize], self.merges[rank as usize]);
            // An entry is stale when either side has been merged away since it was queued.
            if left.id != merge.left || left.next == NONE || symbols[left.next as usize].id != merge.right {
                continue;
            }
            let after = symbols[left.next as usize].next;
            symbols[left.next as usize].id = NONE;
            symbols[at as usize] = Symbol { id: merge.merged, next: after, ..left };
            if after != NONE {
                symbols[after as usize].previous = at;
                self.offer(symbols, queue, at);
            }
            if left.previous != NONE {
                self.offer(symbols, queue, left.previous);
            }
        }
        let mut at = 0;
        while at != NONE {
            ids.push(symbols[at as usize].id);
            at = symbols[at as usize].next;
        }
    }

    /// Queues the pair that begins at `at`, if it is one.
    fn offer(&self, symbols: &[Symbol], queue: &mut BinaryHeap<Reverse<(u32, u32)>>, at: u32) {
        let left = symbols[at as usize];
        if let Some(rank) = self.rank(left.id, symbols[left.next as usize].id) {
            queue.push(Reverse((rank, at)));
        }
    }
}

fn find(table: &HashTable<u32>, hasher: &DefaultHashBuilder, tokens: &Arena, bytes: &[u8]) -> Option<u32> {
    table.find(hasher.hash_one(bytes), |&id| tokens.get(id as usize) == Some(bytes)).copied()
}

/// The vocabulary's strings reordered so that a string's index is its id.
fn by_id(vocabulary: &Arena, ids: &[u32]) -> Result<Arena, TokenizerError> {
    let size = ids.iter().max().map_or(0, |&id| id as usize + 1);
    let mut index_of = vec![NONE; size];
    for (index, &id) in ids.iter().enumerate() {
        if std::mem::replace(&mut index_of[id as usize], index as u32) != NONE {
            return Err(inconsistent(format!("two tokens of model.vocab have the id {id}")));
        }
    }
    let mut tokens = Arena::default();
    tokens.ends.reserve_exact(size);
    for index in index_of {
        tokens.push(vocabulary.get(index as usize).unwrap_or_default().iter().copied());
    }
    tokens.shrink();
    Ok(tokens)
}

fn inconsistent(reason: String) -> TokenizerError {
    TokenizerError::Inconsistent { file: FILE, reason }
}
