//! What can be typed at the prompt instead of a question: one table, from which `/help` is made.

use crate::args::{Shown, Switch};

/// An order at the prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Order {
    Help,
    Exit,
    Reset,
    /// Sets the system message, or shows it.
    System(Option<String>),
    NoSystem,
    Save(String),
    Stats,
    Thinking(Switch),
    /// Folds thoughts, or shows the last ones.
    Thoughts(Option<Shown>),
}

/// Name, arguments and meaning.
const TABLE: [(&str, &str, &str); 8] = [
    ("/help", "", "this list"),
    ("/reset", "", "forget what was said, keep the system message"),
    ("/system", "[TEXT|-]", "set the system message, show it, or remove it with -"),
    ("/save", "FILE", "write the conversation to a new file; .json gives messages"),
    ("/stats", "", "how the last answer went, and how full the context is"),
    ("/thinking", "on|off", "whether the model thinks before it answers"),
    ("/thoughts", "[show|hide]", "unfold or fold thoughts; alone, the last ones"),
    ("/exit", "", "leave, as Ctrl-D does"),
];

/// Names that orders begin with.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|(name, ..)| *name)
}

pub(super) fn help() -> String {
    let mut text = String::new();
    for (name, arguments, meaning) in TABLE {
        let order = format!("{name} {arguments}");
        text.push_str(&format!("{order:22} {meaning}\n"));
    }
    text.push_str(
        "a line that ends in \\ goes on in the next one, and so does text between two \"\"\"\n\
         Ctrl-C stops an answer; at the prompt, twice leaves\n",
    );
    text
}

/// Reads an order: `None` if the text is a question. Two slashes begin a question with one.
pub(super) fn parse(text: &str) -> Option<Result<Order, String>> {
    if !text.starts_with('/') || text.starts_with("//") {
        return None;
    }
    let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let rest = rest.trim();
    let alone = |order: Order| {
        if rest.is_empty() {
            Ok(order)
        } else {
            Err(format!("{name} takes nothing after it, found {rest:?}"))
        }
    };
    Some(match name {
        "/help" | "/?" => alone(Order::Help),
        "/exit" | "/quit" => alone(Order::Exit),
        "/reset" => alone(Order::Reset),
        "/stats" => alone(Order::Stats),
        "/system" => Ok(match rest {
            "" => Order::System(None),
            "-" => Order::NoSystem,
            text => Order::System(Some(text.to_owned())),
        }),
        "/save" if rest.is_empty() => Err("/save takes the name of a file".to_owned()),
        "/save" => Ok(Order::Save(rest.to_owned())),
        "/thinking" => match rest {
            "on" => Ok(Order::Thinking(Switch::On)),
            "off" => Ok(Order::Thinking(Switch::Off)),
            _ => Err(format!("/thinking takes on or off, found {rest:?}")),
        },
        "/thoughts" | "/think" => match rest {
            "" => Ok(Order::Thoughts(None)),
            "show" => Ok(Order::Thoughts(Some(Shown::Show))),
            "hide" => Ok(Order::Thoughts(Some(Shown::Hide))),
            _ => Err(format!("/thoughts takes show, hide or nothing, found {rest:?}")),
        },
        _ => Err(format!("there is no {name}: /help lists what there is, // begins a question with a slash")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read() {
        assert_eq!(parse("What?"), None);
        assert_eq!(parse("//etc is what?"), None);
        assert_eq!(parse("/reset"), Some(Ok(Order::Reset)));
        assert_eq!(parse("/quit"), Some(Ok(Order::Exit)));
        assert_eq!(
            parse("/system  Be brief. \n Be kind."),
            Some(Ok(Order::System(Some("Be brief. \n Be kind.".to_owned()))))
        );
        assert_eq!(parse("/system -"), Some(Ok(Order::NoSystem)));
        assert_eq!(parse("/save a b.json"), Some(Ok(Order::Save("a b.json".to_owned()))));
        assert_eq!(parse("/think hide"), Some(Ok(Order::Thoughts(Some(Shown::Hide)))));
        for wrong in ["/", "/nope", "/reset now", "/save", "/thinking", "/thinking maybe", "/thoughts on"] {
            assert!(parse(wrong).unwrap().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn help_lists_what_is_understood() {
        for name in names() {
            let refused = matches!(parse(name), Some(Err(reason)) if reason.starts_with("there is no"));
            assert!(!refused && help().contains(name), "{name}");
        }
    }
}
