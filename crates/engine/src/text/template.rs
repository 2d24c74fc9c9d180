//! Messages to a prompt, by the model's own chat template.
//!
//! Must give the bytes that Python's Jinja2 gives, and must never answer from a prompt in which a message is missing.

use minijinja::value::Serde;
use minijinja::{Environment, Error, Value as Jinja};
use serde_json::{Map, Value};

use super::error::TemplateError;
use super::jinja;
use super::messages::{Message, Normal, normalize, refused};
use super::prompt::Prompt;
use super::protect::{Guard, Used};

/// Qwen3.6's template has 8 KB.
const MAX_TEMPLATE_BYTES: usize = 1 << 20;
/// Characters of one tag outside its string literals. The parser recurses over chains of operators: tens of thousands of
/// them would overflow the stack. Qwen3.6's longest tag has under 200.
const MAX_TAG_CHARS: usize = 2000;
/// Steps that a template may take whatever it is given.
const BASE_FUEL: u64 = 2_000_000;
/// Further steps for each byte of a request: a template goes over the messages a handful of times.
const FUEL_PER_BYTE: u64 = 16;
/// Arguments that have their own place in a request.
const RESERVED: [&str; 3] = ["messages", "tools", "add_generation_prompt"];

/// What is rendered.
#[derive(Debug, Clone, Copy)]
pub struct ChatInput<'a> {
    /// The conversation.
    pub messages: &'a [Message],
    /// Tool definitions as the client wrote them.
    pub tools: Option<&'a [Value]>,
    /// Further arguments of the template, such as `enable_thinking`.
    pub kwargs: &'a Map<String, Value>,
    /// Whether the prompt ends where the assistant's next message begins.
    pub add_generation_prompt: bool,
}

/// A model's chat template, or templates: some models have a second one for requests with tools.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    has_tool_use: bool,
    /// Names such as `eos_token` that every template sees.
    globals: Map<String, Value>,
    /// Private-use characters of the sources.
    used: Used,
    knows_lists: bool,
}

/// Files that may hold a template.
#[derive(Debug, Clone, Copy, Default)]
pub struct TemplateFiles<'a> {
    /// `chat_template.jinja`, which goes first.
    pub jinja: Option<&'a [u8]>,
    /// `tokenizer_config.json`: its `chat_template` goes second, and its special tokens are names in the template.
    pub tokenizer_config: Option<&'a [u8]>,
    /// `chat_template.json`, which goes last.
    pub json: Option<&'a [u8]>,
}

impl ChatTemplate {
    /// Finds and compiles the template.
    pub fn from_files(files: TemplateFiles<'_>) -> Result<ChatTemplate, TemplateError> {
        let config = files.tokenizer_config.map(|file| parse("tokenizer_config.json", file)).transpose()?;
        let named = match (files.jinja, config.as_ref().and_then(|config| config.get("chat_template"))) {
            (Some(source), _) => vec![("default".to_owned(), utf8("chat_template.jinja", source)?)],
            (None, Some(value)) if !value.is_null() => named_sources("tokenizer_config.json", value)?,
            _ => {
                let file = parse("chat_template.json", files.json.ok_or(TemplateError::Missing)?)?;
                named_sources("chat_template.json", file.get("chat_template").ok_or(TemplateError::Missing)?)?
            }
        };
        ChatTemplate::new(named, config.map(|config| special_tokens(&config)).unwrap_or_default())
    }

    fn new(
        sources: Vec<(String, String)>,
        globals: Map<String, Value>,
    ) -> Result<ChatTemplate, TemplateError> {
        let syntax = |error: &Error| TemplateError::Syntax { reason: describe(error) };
        let mut env = jinja::environment().map_err(|error| syntax(&error))?;
        let mut used = Used::default();
        let mut has_tool_use = false;
        for (name, source) in sources {
            if source.len() > MAX_TEMPLATE_BYTES {
                let reason = format!("{} bytes, the limit is {MAX_TEMPLATE_BYTES}", source.len());
                return Err(TemplateError::Syntax { reason });
            }
            check_tags(&source)?;
            used.add(&source);
            has_tool_use |= name == "tool_use";
            env.add_template_owned(name, source).map_err(|error| syntax(&error))?;
        }
        let mut template = ChatTemplate { env, has_tool_use, globals, used, knows_lists: false };
        template.knows_lists = template.probe_lists();
        Ok(template)
    }

    /// Renders a conversation. `specials` are the texts of the tokenizer's special tokens: where a message contains
    /// one, the prompt knows that it is text.
    pub fn render(&self, input: &ChatInput<'_>, specials: &[&str]) -> Result<Prompt, TemplateError> {
        if let Some(name) = RESERVED.into_iter().find(|name| input.kwargs.contains_key(*name)) {
            let param = format!("chat_template_kwargs.{name}");
            return Err(refused(param, "this argument has its own field in the request"));
        }
        let messages = normalize(input.messages, self.knows_lists)?;
        let rendered = self.render_guarded(&messages, input, specials);
        let late = messages.iter().skip(1).find(|message| message.role == "system");
        match (late, rendered) {
            (None, rendered) => rendered.map_err(|failure| failure.into_error("messages")),
            (Some(late), rendered) => self.check_late_system(late, &messages, input, rendered),
        }
    }

    /// A system message after the first: templates refuse it, render it, or silently leave it out. The last must not
    /// happen, and a refusal must name the message.
    fn check_late_system(
        &self,
        late: &Normal,
        messages: &[Normal],
        input: &ChatInput<'_>,
        rendered: Result<Prompt, Failure>,
    ) -> Result<Prompt, TemplateError> {
        let param = format!("messages[{}]", late.index);
        match rendered {
            Ok(prompt) => {
                let probe = "\u{10FFFE}"; // a noncharacter: no client's text has it for a purpose
                let mut probing = messages.to_vec();
                let later = probing.iter_mut().skip(1).filter(|message| message.role == "system");
                let expected = later.map(|message| message.fields["content"] = probe.into()).count();
                let shown =
                    self.render_plain(&probing, input).map_err(|failure| failure.into_error(&param))?;
                if shown.matches(probe).count() < expected {
                    let reason = "System message must be at the beginning: the model's chat template leaves out any \
                                  later one";
                    return Err(refused(param, reason));
                }
                Ok(prompt)
            }
            Err(failure) => {
                let mut without = messages.to_vec();
                without.retain(|message| message.role != "system" || message.index == messages[0].index);
                let is_the_cause = self.render_plain(&without, input).is_ok();
                Err(failure.into_error(if is_the_cause { &param } else { "messages" }))
            }
        }
    }

    /// The special token that the template puts behind an assistant's message: it ends a turn, whether or not the
    /// model's files list it among the end tokens.
    pub fn end_of_turn<'a>(&self, specials: &[&'a str]) -> Option<&'a str> {
        let said = "0f probe 9c";
        let message = |role: &str, content: &str| {
            Map::from_iter([("role".to_owned(), role.into()), ("content".to_owned(), content.into())])
        };
        let turn = [message("user", "hi"), message("assistant", said)];
        let rendered = self.render_values(&turn, None, &Map::new(), false).ok()?;
        let after = rendered.rsplit_once(said)?.1;
        let found = specials.iter().filter_map(|special| Some((after.find(special)?, *special)));
        found.min_by_key(|(at, special)| (*at, usize::MAX - special.len())).map(|(_, special)| special)
    }

    fn render_guarded(
        &self,
        messages: &[Normal],
        input: &ChatInput<'_>,
        specials: &[&str],
    ) -> Result<Prompt, Failure> {
        let mut used = self.used.clone();
        let mut messages: Vec<Map<String, Value>> =
            messages.iter().map(|message| message.fields.clone()).collect();
        let mut tools = input.tools.map(<[Value]>::to_vec);
        let mut kwargs = input.kwargs.clone();
        let strings = messages.iter().flat_map(Map::iter).chain(&kwargs);
        strings.for_each(|(key, value)| {
            used.add(key);
            used.add_value(value);
        });
        tools.iter().flatten().for_each(|tool| used.add_value(tool));
        let guard = Guard::new(&used, specials).ok_or(Failure::TooManyPrivateCharacters)?;
        messages.iter_mut().for_each(|message| mark_message(&guard, message));
        tools.iter_mut().flatten().for_each(|tool| guard.mark_value(tool));
        guard.mark_map(&mut kwargs);
        let rendered =
            self.render_values(&messages, tools.as_deref(), &kwargs, input.add_generation_prompt)?;
        Ok(guard.unmark(&rendered))
    }

    fn render_plain(&self, messages: &[Normal], input: &ChatInput<'_>) -> Result<String, Failure> {
        let messages: Vec<_> = messages.iter().map(|message| message.fields.clone()).collect();
        self.render_values(&messages, input.tools, input.kwargs, input.add_generation_prompt)
    }

    fn render_values(
        &self,
        messages: &[Map<String, Value>],
        tools: Option<&[Value]>,
        kwargs: &Map<String, Value>,
        add_generation_prompt: bool,
    ) -> Result<String, Failure> {
        let mut context: Vec<(&str, Jinja)> = Vec::with_capacity(8);
        context.extend(self.globals.iter().map(|(name, value)| (name.as_str(), Jinja::from(Serde(value)))));
        context.push(("messages", Jinja::from(Serde(messages))));
        context.push(("tools", Jinja::from(Serde(tools))));
        context.push(("documents", Jinja::from(())));
        context.push(("add_generation_prompt", Jinja::from(add_generation_prompt)));
        context.extend(kwargs.iter().map(|(name, value)| (name.as_str(), Jinja::from(Serde(value)))));
        let sizes = [
            messages.iter().flat_map(Map::values).map(size_of_value).sum::<u64>(),
            tools.iter().copied().flatten().map(size_of_value).sum(),
            kwargs.values().map(size_of_value).sum(),
        ];
        let fuel = BASE_FUEL + FUEL_PER_BYTE * sizes.iter().sum::<u64>();
        let mut env = self.env.clone();
        env.set_fuel(Some(fuel));
        let has_tools = tools.is_some_and(|tools| !tools.is_empty());
        let name = if has_tools && self.has_tool_use { "tool_use" } else { "default" };
        let rendered =
            env.get_template(name).and_then(|template| template.render(Jinja::from_pairs(context)));
        rendered.map_err(|error| Failure::Engine(error, fuel))
    }

    /// Whether the template shows a list of text parts as it shows their text. One that only knows strings prints the
    /// list itself, drops it or fails.
    fn probe_lists(&self) -> bool {
        let probe = |content: Value| {
            let user = Map::from_iter([("role".to_owned(), "user".into()), ("content".to_owned(), content)]);
            self.render_values(&[user], None, &Map::new(), true).ok()
        };
        let text = "0f probe 9c";
        let as_text = probe(text.into());
        as_text.is_some_and(|shown| shown.contains(text) && probe(parts(text)) == Some(shown))
    }
}

fn parts(text: &str) -> Value {
    let (first, second) = text.split_at(text.len() / 2);
    serde_json::json!([{"type": "text", "text": first}, {"type": "text", "text": second}])
}

/// Marks a message's strings; its role and the `type` of its parts and calls are ours.
fn mark_message(guard: &Guard<'_>, message: &mut Map<String, Value>) {
    for (key, value) in message.iter_mut() {
        match (key.as_str(), value) {
            ("role", _) => {}
            ("name" | "tool_call_id", Value::String(name)) => guard.mark_name(name),
            ("tool_calls", Value::Array(calls)) => {
                for call in calls {
                    if let Some(Value::String(name)) = call.pointer_mut("/function/name") {
                        guard.mark_name(name);
                    }
                    if let Some(arguments) = call.pointer_mut("/function/arguments") {
                        guard.mark_value(arguments);
                    }
                    if let Some(Value::String(id)) = call.get_mut("id") {
                        guard.mark_name(id);
                    }
                }
            }
            (_, value) => guard.mark_value(value),
        }
    }
}

/// Roughly the bytes of a value, each value and key counting for at least a few.
fn size_of_value(value: &Value) -> u64 {
    const EACH: u64 = 16;
    EACH + match value {
        Value::String(text) => text.len() as u64,
        Value::Array(items) => items.iter().map(size_of_value).sum(),
        Value::Object(map) => map.iter().map(|(key, item)| key.len() as u64 + size_of_value(item)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// Why a rendering failed.
#[derive(Debug)]
enum Failure {
    Engine(Error, u64),
    TooManyPrivateCharacters,
}

impl Failure {
    /// The error for a client; what the template raised is about `param`.
    fn into_error(self, param: &str) -> TemplateError {
        match self {
            Failure::TooManyPrivateCharacters => {
                refused("messages".to_owned(), "the text uses every character of the last private-use plane")
            }
            Failure::Engine(error, limit) => match jinja::raised(&error) {
                Some(reason) => refused(param.to_owned(), reason),
                None if jinja::out_of_fuel(&error) => TemplateError::OutOfFuel { limit },
                None => TemplateError::Failed { reason: describe(&error) },
            },
        }
    }
}

/// An error with its place and its causes, on one line.
fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

fn utf8(file: &'static str, bytes: &[u8]) -> Result<String, TemplateError> {
    let text = std::str::from_utf8(bytes);
    text.map(str::to_owned).map_err(|error| TemplateError::Unreadable { file, reason: error.to_string() })
}

fn parse(file: &'static str, bytes: &[u8]) -> Result<Value, TemplateError> {
    serde_json::from_slice(bytes)
        .map_err(|error| TemplateError::Unreadable { file, reason: error.to_string() })
}

/// `chat_template` is a template or a list of named ones, of which `default` must be one.
fn named_sources(file: &'static str, value: &Value) -> Result<Vec<(String, String)>, TemplateError> {
    let unreadable = |reason: &str| TemplateError::Unreadable { file, reason: reason.to_owned() };
    if let Some(source) = value.as_str() {
        return Ok(vec![("default".to_owned(), source.to_owned())]);
    }
    let list = value.as_array().ok_or_else(|| unreadable("chat_template is neither a string nor a list"))?;
    let mut sources = Vec::with_capacity(list.len());
    for entry in list {
        let field = |key| entry.get(key).and_then(Value::as_str).map(str::to_owned);
        let (name, source) = field("name")
            .zip(field("template"))
            .ok_or_else(|| unreadable("an entry of chat_template has no name and template"))?;
        sources.push((name, source));
    }
    if !sources.iter().any(|(name, _)| name == "default") {
        return Err(unreadable("chat_template has no template named default"));
    }
    Ok(sources)
}

/// `eos_token` and the other names of special tokens, given as a string or as an object with `content`.
fn special_tokens(config: &Value) -> Map<String, Value> {
    const NAMES: [&str; 7] =
        ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
    let text = |value: &Value| value.as_str().or_else(|| value.get("content")?.as_str()).map(Value::from);
    let named = NAMES.iter().filter_map(|&name| Some((name.to_owned(), text(config.get(name)?)?)));
    named.collect()
}

/// Refuses tags that are too long to be parsed with a bounded stack.
fn check_tags(source: &str) -> Result<(), TemplateError> {
    let mut rest = source;
    while let Some(start) = rest.find("{{").into_iter().chain(rest.find("{%")).min() {
        let end = if rest[start..].starts_with("{{") { "}}" } else { "%}" };
        let tag = &rest[start + 2..];
        let (mut literal, mut escaped, mut chars, mut closed) = (None, false, 0, tag.len());
        for (i, c) in tag.char_indices() {
            match literal {
                Some(_) if escaped => escaped = false,
                Some(_) if c == '\\' => escaped = true,
                Some(quote) if c == quote => literal = None,
                Some(_) => {}
                None if tag[i..].starts_with(end) => {
                    closed = i;
                    break;
                }
                None if c == '\'' || c == '"' => literal = Some(c),
                None => chars += 1,
            }
        }
        if chars > MAX_TAG_CHARS {
            let line = source[..source.len() - tag.len()].lines().count();
            let reason =
                format!("the tag in line {line} has {chars} characters, expected at most {MAX_TAG_CHARS}");
            return Err(TemplateError::Syntax { reason });
        }
        rest = &tag[closed..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of these overflowed the stack when it was parsed or evaluated.
    #[test]
    fn chains_of_operators_are_refused_before_they_are_parsed() {
        let shallow = MAX_TAG_CHARS - 100;
        for (first, link) in [
            ("1", "+1"),
            ("", "not "),
            ("a", ".a"),
            ("a", "|string"),
            ("1", " if 1 else 1"),
            ("", "-"),
            ("a", "[0]"),
        ] {
            let tag = |n: usize| {
                let chain = link.repeat(n);
                let last = if first.is_empty() { "1" } else { "" };
                format!("{{{{ {first}{chain}{last} }}}}")
            };
            let deep = ChatTemplate::new(vec![("default".to_owned(), tag(50_000))], Map::new());
            assert!(matches!(deep, Err(TemplateError::Syntax { .. })), "{link}");
            // What is let through must not overflow the stack of a test thread, which is smaller than a program's.
            let allowed =
                ChatTemplate::new(vec![("default".to_owned(), tag(shallow / link.len()))], Map::new());
            let _ = allowed.and_then(|t| {
                let input = ChatInput {
                    messages: &[Message::new("user", "hi")],
                    tools: None,
                    kwargs: &Map::new(),
                    add_generation_prompt: true,
                };
                t.render(&input, &[])
            });
        }
    }

    #[test]
    fn long_texts_in_a_tag_are_no_long_tag() {
        let text = format!("{{{{ '{}}}}}%}}' + \"{}\" }}}}", "it\\'s ".repeat(2000), "y".repeat(4000));
        assert!(check_tags(&text).is_ok());
    }
}
