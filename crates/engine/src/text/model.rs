//! Gathers the text half of a model from its files.
//!
//! Files come by name through a closure, so that a folder, a container or a test can hold them. Must not open files
//! itself.

use std::io;

use serde::Deserialize;
use serde_json::Value;

use super::defaults::SamplingDefaults;
use super::error::{TemplateError, TextError, TokenizerError};
use super::messages::Message;
use super::prompt::Prompt;
use super::template::{ChatInput, ChatTemplate, TemplateFiles};
use super::tokenizer::{Tokenizer, Tokens};

/// Configuration files have a few KB; `tokenizer_config.json` may hold a template.
const MAX_CONFIG_BYTES: usize = 16 << 20;

/// Reads a model's file by its name: `None` if the model has no such file.
pub type ReadFile<'a> = dyn Fn(&str) -> io::Result<Option<Vec<u8>>> + 'a;

/// Tokenizer, chat template, end tokens and sampling defaults of a model.
#[derive(Debug)]
pub struct TextModel {
    tokenizer: Tokenizer,
    template: Result<ChatTemplate, TemplateError>,
    end_tokens: Vec<u32>,
    defaults: SamplingDefaults,
}

/// Where a configuration may name end tokens.
#[derive(Default, Deserialize)]
struct Ends {
    eos_token_id: Option<OneOrMore>,
    text_config: Option<Box<Ends>>,
    model_type: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(u32),
    More(Vec<u32>),
}

impl TextModel {
    /// Loads what is there. Only `tokenizer.json` must be; a missing or broken chat template shows when it is used.
    pub fn load(read: &ReadFile<'_>) -> Result<TextModel, TextError> {
        let file = |name: &'static str| read(name).map_err(|source| TextError::Read { file: name, source });
        let tokenizer_config = small("tokenizer_config.json", file("tokenizer_config.json")?)?;
        let tokenizer_json =
            file("tokenizer.json")?.ok_or(TokenizerError::Missing { file: "tokenizer.json" })?;
        let tokenizer = Tokenizer::from_json(&tokenizer_json, tokenizer_config.as_deref())?;
        // The largest file by far; free it before anything else is allocated.
        drop(tokenizer_json);
        let jinja = small("chat_template.jinja", file("chat_template.jinja")?)?;
        let json = small("chat_template.json", file("chat_template.json")?)?;
        let generation = small("generation_config.json", file("generation_config.json")?)?;
        let config = small("config.json", file("config.json")?)?;
        let template = ChatTemplate::from_files(TemplateFiles {
            jinja: jinja.as_deref(),
            tokenizer_config: tokenizer_config.as_deref(),
            json: json.as_deref(),
        });
        let config: Ends = parse("config.json", config.as_deref())?;
        let mut defaults: SamplingDefaults = parse("generation_config.json", generation.as_deref())?;
        let model_types =
            [config.model_type.as_deref(), config.text_config.as_ref().and_then(|t| t.model_type.as_deref())];
        defaults.is_qwen3_next = model_types.into_iter().flatten().any(|name| name.starts_with("qwen3_next"));
        let generation: Ends = parse("generation_config.json", generation.as_deref())?;
        let tokenizer_config: Value = parse("tokenizer_config.json", tokenizer_config.as_deref())?;
        let end_tokens =
            end_tokens(&tokenizer, &[generation, config], &tokenizer_config, template.as_ref().ok());
        Ok(TextModel { tokenizer, template, end_tokens, defaults })
    }

    /// The tokenizer.
    pub fn tokens(&self) -> &dyn Tokens {
        &self.tokenizer
    }

    /// The chat template, or why there is none.
    pub fn template(&self) -> Result<&ChatTemplate, &TemplateError> {
        self.template.as_ref()
    }

    /// The tokens that end an answer, ascending: those that generation_config.json, config.json (and its text_config)
    /// and tokenizer_config.json name, and the one with which the chat template ends a turn. Each list alone has been
    /// seen to be incomplete.
    pub fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    /// Sampling values for requests that do not give their own.
    pub fn defaults(&self) -> &SamplingDefaults {
        &self.defaults
    }

    /// Encodes a text of at most `limit` tokens, in which special tokens are recognised. One that has more is refused
    /// without being encoded to its end.
    pub fn encode(&self, text: &str, limit: usize) -> Result<Vec<u32>, TextError> {
        Ok(self.tokenizer.encode_within(text, limit)?)
    }

    /// A text of more bytes than these has more than `tokens` tokens, whatever is in it.
    pub fn most_bytes(&self, tokens: usize) -> usize {
        self.tokenizer.most_bytes(tokens)
    }

    /// Renders a conversation and encodes it. One of more than `limit` tokens is refused, where a user's words alone are
    /// more before it is rendered.
    pub fn prompt(&self, input: &ChatInput<'_>, limit: usize) -> Result<(Prompt, Vec<u32>), TextError> {
        let template =
            self.template.as_ref().map_err(|error| TextError::NoTemplate { reason: error.to_string() })?;
        // Rendering makes some copies of all of it. Templates trim what users say and leave out none of it, other than
        // what an assistant thought.
        let said = input.messages.iter().filter(|message| message.role == "user");
        let least = said.flat_map(Message::texts).map(|text| self.tokenizer.least_tokens(text.trim())).sum();
        if least > limit {
            return Err(TokenizerError::TooManyTokens { least, limit }.into());
        }
        let prompt = template.render(input, &self.tokenizer.special_texts())?;
        let ids = self.tokenizer.encode_prompt_within(&prompt, limit)?;
        Ok((prompt, ids))
    }
}

fn small(name: &'static str, file: Option<Vec<u8>>) -> Result<Option<Vec<u8>>, TextError> {
    match file {
        Some(file) if file.len() > MAX_CONFIG_BYTES => {
            Err(TokenizerError::TooLarge { what: name, found: file.len(), limit: MAX_CONFIG_BYTES }.into())
        }
        file => Ok(file),
    }
}

fn parse<T: Default + for<'de> Deserialize<'de>>(
    name: &'static str,
    file: Option<&[u8]>,
) -> Result<T, TextError> {
    let Some(file) = file else { return Ok(T::default()) };
    serde_json::from_slice(file)
        .map_err(|e| TokenizerError::Json { file: name, reason: e.to_string() }.into())
}

fn end_tokens(
    tokenizer: &Tokenizer,
    configs: &[Ends],
    tokenizer_config: &Value,
    template: Option<&ChatTemplate>,
) -> Vec<u32> {
    let mut ids = Vec::new();
    let all = configs.iter().flat_map(|config| std::iter::once(config).chain(config.text_config.as_deref()));
    for ends in all {
        match &ends.eos_token_id {
            Some(OneOrMore::One(id)) => ids.push(*id),
            Some(OneOrMore::More(more)) => ids.extend(more),
            None => {}
        }
    }
    let eos = &tokenizer_config["eos_token"];
    let eos = eos.as_str().or_else(|| eos["content"].as_str());
    let end_of_turn = template.and_then(|template| template.end_of_turn(&tokenizer.special_texts()));
    ids.extend(eos.into_iter().chain(end_of_turn).filter_map(|text| tokenizer.id(text)));
    ids.sort_unstable();
    ids.dedup();
    ids
}
