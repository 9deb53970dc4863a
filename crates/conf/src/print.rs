//! Prints a tree as a text that reads back as the same tree, or tells why no text does.

use std::fmt;

use crate::lexer::LONGEST;
use crate::lua;
use crate::parser::{DEEPEST_BLOCK, Form, form_of, includes};
use crate::tree::{Directive, DirectiveBody, Word};

/// Why a tree has no text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrintError {
    /// The directive's name, and the reason why it cannot be written.
    pub message: String,
}

impl fmt::Display for PrintError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for PrintError {}

/// Writes directives so that [`crate::read_text`] gives the same words and blocks back.
///
/// A directive that the reader would replace (`include`), a word that it would refuse as too long,
/// and a block in a block of lines (`map`) are errors.
pub fn print(list: &[Directive]) -> Result<Vec<u8>, PrintError> {
    print_at(list, 0)
}

/// As [`print()`], for directives in `depth` blocks, such as the servers of `http`. The result is a
/// part of the text that [`print()`] writes for the whole.
pub fn print_at(list: &[Directive], depth: u32) -> Result<Vec<u8>, PrintError> {
    let mut out = Vec::new();
    statements(list, Form::Directives, depth, &mut out)?;
    Ok(out)
}

fn statements(
    list: &[Directive],
    form: Form,
    depth: u32,
    out: &mut Vec<u8>,
) -> Result<(), PrintError> {
    for directive in list {
        let refuse = |why: &str| {
            let message = format!("\"{}\" {why}", directive.name.lossy());
            Err(PrintError { message })
        };
        if let Some(why) = refusal(directive, form) {
            return refuse(why);
        }
        indent(depth, out);
        for (n, part) in std::iter::once(&directive.name).chain(&directive.args).enumerate() {
            if n > 0 {
                out.push(b' ');
            }
            word(part, out)?;
        }
        match &directive.body {
            DirectiveBody::None => out.extend_from_slice(b";\n"),
            DirectiveBody::Raw(text) => {
                let closed = [text.as_slice(), b"}"].concat();
                if lua::body_length(&closed) != Ok(text.len()) {
                    return refuse("has a script with unbalanced braces");
                }
                out.extend_from_slice(b" {");
                out.extend_from_slice(&closed);
                out.push(b'\n');
            }
            DirectiveBody::Block(_) if depth == DEEPEST_BLOCK => {
                return refuse("is nested too deep");
            }
            DirectiveBody::Block(inner) => {
                out.extend_from_slice(b" {\n");
                statements(inner, form_of(&directive.name), depth + 1, out)?;
                indent(depth, out);
                out.extend_from_slice(b"}\n");
            }
        }
    }
    Ok(())
}

/// Why no text can contain this directive among statements of this form.
pub(crate) fn refusal(directive: &Directive, form: Form) -> Option<&'static str> {
    let has_body = directive.body != DirectiveBody::None;
    let raw = directive.name.bytes.ends_with(b"_by_lua_block");
    if !has_body && includes(directive, form) {
        Some("would be read as a file to include")
    } else if has_body && form != Form::Directives {
        Some("cannot have a block here")
    } else if has_body && raw != matches!(directive.body, DirectiveBody::Raw(_)) {
        Some("has a body of the wrong kind")
    } else {
        None
    }
}

fn indent(depth: u32, out: &mut Vec<u8>) {
    (0..depth).for_each(|_| out.extend_from_slice(b"    "));
}

/// Prints a word. It is bare if each of its bytes means itself everywhere in a word; otherwise it
/// is quoted.
fn word(word: &Word, out: &mut Vec<u8>) -> Result<(), PrintError> {
    let from = out.len();
    if !word.bytes.is_empty() && word.bytes.iter().all(|&byte| is_plain(byte)) {
        out.extend_from_slice(&word.bytes);
    } else {
        out.push(b'"');
        for &byte in &word.bytes {
            match byte {
                b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
                b'\n' => out.extend_from_slice(b"\\n"),
                b'\r' => out.extend_from_slice(b"\\r"),
                b'\t' => out.extend_from_slice(b"\\t"),
                _ => out.push(byte),
            }
        }
        out.push(b'"');
    }
    match out.len() - from < LONGEST {
        true => Ok(()),
        false => {
            let head: String = word.lossy().chars().take(20).collect();
            Err(PrintError { message: format!("the word \"{head}...\" is too long") })
        }
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-./:=$@*~%+,?&^".contains(&byte)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::{is_same, read_text};

    fn back(list: &[Directive]) -> Option<bool> {
        let text = print(list).ok()?;
        let tree = read_text(Path::new("printed.conf"), &text);
        assert!(tree.broken.is_none(), "{:?} in {}", tree.broken, String::from_utf8_lossy(&text));
        Some(is_same(&tree.main, list))
    }

    /// Words of the language's special characters, and of any bytes.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let pieces = prop_oneof![
            Just(b"\"".to_vec()),
            Just(b"'".to_vec()),
            Just(b"\\".to_vec()),
            Just(b"{".to_vec()),
            Just(b"}".to_vec()),
            Just(b";".to_vec()),
            Just(b"#".to_vec()),
            Just(b"${".to_vec()),
            Just(b"\n".to_vec()),
            Just(b"\\n".to_vec()),
            Just(b" ".to_vec()),
            Just(b")".to_vec()),
            Just(b"include".to_vec()),
            Just(b"map".to_vec()),
            Just(b"x_by_lua_block".to_vec()),
            proptest::collection::vec(any::<u8>(), 0..6),
        ];
        proptest::collection::vec(pieces, 0..5).prop_map(|pieces| pieces.concat())
    }

    fn directive() -> impl Strategy<Value = Directive> {
        let leaf = (bytes(), proptest::collection::vec(bytes(), 0..4)).prop_map(|(name, args)| {
            let mut directive = Directive::new("", args);
            directive.name = Word::new(name);
            directive
        });
        leaf.prop_recursive(4, 20, 4, |inner| {
            (
                bytes(),
                proptest::collection::vec(bytes(), 0..4),
                prop_oneof![
                    proptest::collection::vec(inner, 0..4)
                        .prop_map(|list| DirectiveBody::Block(list.into())),
                    bytes().prop_map(DirectiveBody::Raw),
                ],
            )
                .prop_map(|(name, args, body)| {
                    let mut directive = Directive::new("", args);
                    directive.name = Word::new(name);
                    directive.body = body;
                    directive
                })
        })
    }

    proptest! {
        #[test]
        fn a_printed_tree_reads_back_as_the_same(list in proptest::collection::vec(directive(), 0..4)) {
            prop_assert_ne!(back(&list), Some(false));
        }
    }

    #[test]
    fn printed_parts_of_a_block_make_the_whole_text() {
        let server = |name: &str| {
            let listen = Directive::new("listen", ["80"]);
            let name = Directive::new("server_name", [name]);
            Directive::new("server", [""; 0]).with_block(vec![listen, name])
        };
        let whole = Directive::new("http", [""; 0]).with_block(vec![server("a"), server("b")]);
        let parts = ["a", "b"].map(|name| print_at(&[server(name)], 1).unwrap());
        let text = [b"http {\n".as_slice(), &parts[0], &parts[1], b"}\n"].concat();
        assert_eq!(print(&[whole]), Ok(text));
    }

    #[test]
    fn every_word_can_be_printed_as_one_word() {
        for bytes in ["", "a b", "\"", "\\", "\\\\\"", "};x {", "${x", "#", "a\nb", "'", "\\n", ")"]
        {
            assert_eq!(back(&[Directive::new("return", ["200", bytes])]), Some(true), "{bytes:?}");
        }
    }

    #[test]
    fn a_tree_that_would_read_back_differently_is_refused() {
        let inner = || vec![Directive::new("include", ["/etc/shadow"])];
        assert!(print(&inner()).is_err());
        assert!(print(&[Directive::new("map", ["$a", "$b"]).with_block(inner())]).is_err());
        assert!(print(&[Directive::new("return", ["x".repeat(5000)])]).is_err());
        let script = DirectiveBody::Raw(b"} evil {".to_vec());
        let mut lua = Directive::new("content_by_lua_block", [""; 0]);
        lua.body = script;
        assert!(print(&[lua]).is_err());
        assert!(
            print(&[Directive::new("x_by_lua_block", [""; 0]).with_block(Vec::new())]).is_err()
        );
    }
}
