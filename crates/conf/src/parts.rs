//! A configuration in named parts. A part of the previous configuration comes as its name alone and
//! is not parsed again.
//!
//! ```text
//! weir parts 1
//! part NAME LENGTH       a part with so many bytes, which follow
//! part NAME              the part of that name in the configuration before
//! begin http             a block: parts up to "end" stand in it
//! end
//! ```

use std::cell::OnceCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::Error;
use crate::parser::{read_globals, read_part};
use crate::source::{SourceText, Sources};
use crate::tree::{ConfigTree, Directive};

/// The first bytes of this format. Another number is another format.
const MAGIC: &[u8] = b"weir parts 1\n";
/// The longest name of a part.
const LONGEST_NAME: usize = 100;
/// The longest line, apart from the contents of parts.
const LONGEST_LINE: usize = LONGEST_NAME + 40;

/// The parts of a configuration, in their order. A clone has the same.
#[derive(Clone, Debug, Default)]
pub struct Parts(Arc<Vec<Arc<Part>>>);

#[derive(Debug)]
struct Part {
    name: Box<str>,
    /// The index of its text in the sources of each configuration that it is part of.
    file: u32,
    source: Arc<SourceText>,
    list: Vec<Directive>,
}

/// Why bytes are no configuration in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartsError {
    /// They do not have this format, for this reason.
    Form(String),
    /// The previous configuration has no part with this name.
    Unknown(String),
}

enum Line<'a> {
    New(&'a str, &'a [u8]),
    Known(&'a str),
    Begin(&'a str),
    End,
}

/// A line whose part was looked up in the previous configuration.
enum Entry<'a> {
    New(&'a str, &'a [u8]),
    Known(&'a Arc<Part>),
    Begin(&'a str),
    End,
}

/// Finds parts by name. Most come in the order of the previous configuration, so they need no map.
struct Finder<'a> {
    parts: &'a [Arc<Part>],
    /// The index behind the part that was found last.
    next: usize,
    places: OnceCell<HashMap<&'a str, usize>>,
}

impl<'a> Finder<'a> {
    fn of(parts: &'a [Arc<Part>]) -> Finder<'a> {
        Finder { parts, next: 0, places: OnceCell::new() }
    }

    fn find(&mut self, name: &str) -> Option<&'a Arc<Part>> {
        let next = self.parts.get(self.next).filter(|part| &*part.name == name);
        let at = match next {
            Some(_) => self.next,
            None => {
                let parts = self.parts.iter().enumerate();
                let places = || parts.map(|(at, part)| (&*part.name, at)).collect();
                *self.places.get_or_init(places).get(name)?
            }
        };
        self.next = at + 1;
        self.parts.get(at)
    }
}

impl Parts {
    /// Reads a configuration, with the directives of `-g` first. `self` has the parts of the
    /// previous configuration. An error in a part is in [`ConfigTree::broken`]; its text is called
    /// `part NAME`. A part may not include files.
    ///
    /// # Errors
    ///
    /// The bytes have another format, or name a part that is unknown.
    pub fn read(
        &self,
        bytes: &[u8],
        globals: Option<&str>,
    ) -> Result<(ConfigTree, Parts), PartsError> {
        let entries = self.find(lines(bytes)?)?;
        // Known parts keep the index of their text, which their directives contain.
        let mut texts: Vec<Option<Arc<SourceText>>> = Vec::new();
        let place = |texts: &mut Vec<Option<Arc<SourceText>>>, part: &Part| {
            let at = part.file as usize;
            texts.resize(texts.len().max(at + 1), None);
            if let Some(text) = texts.get_mut(at) {
                *text = Some(part.source.clone());
            }
        };
        for entry in &entries {
            if let Entry::Known(part) = entry {
                place(&mut texts, part);
            }
        }
        let (mut main, mut broken) = (Vec::new(), None);
        let first = read_globals(globals.unwrap_or_default(), &mut main, &mut broken);
        // The first text has the directives of `-g`.
        texts.resize(texts.len().max(1), None);
        if let Some(text) = texts.get_mut(0) {
            *text = Some(Arc::new(first));
        }
        let mut free = 1;
        let mut added: HashMap<&str, Arc<Part>> = HashMap::new();
        let mut parts = Vec::with_capacity(entries.len());
        let mut block: Option<(&str, Vec<Directive>)> = None;
        for entry in entries {
            if broken.is_some() {
                break;
            }
            let part = match entry {
                Entry::Begin(name) => {
                    block = Some((name, Vec::new()));
                    continue;
                }
                Entry::End => {
                    main.extend(block.take().map(closed));
                    continue;
                }
                Entry::Known(part) => part.clone(),
                Entry::New(name, text) => match added.get(name) {
                    Some(part) if part.source.text == text => part.clone(),
                    Some(_) => {
                        return Err(PartsError::Form(format!("part {name} has two texts")));
                    }
                    None => {
                        while texts.get(free).is_some_and(Option::is_some) {
                            free += 1;
                        }
                        let (part, error) = Part::read(name, text, free as u32);
                        broken = error;
                        place(&mut texts, &part);
                        let part = Arc::new(part);
                        added.insert(name, part.clone());
                        part
                    }
                },
            };
            let list = block.as_mut().map_or(&mut main, |(_, list)| list);
            list.extend_from_slice(&part.list);
            parts.push(part);
        }
        main.extend(block.map(closed));
        let sources = Sources::of(texts.into_iter().map(Option::unwrap_or_default));
        Ok((ConfigTree { sources, main, broken }, Parts(Arc::new(parts))))
    }

    fn find<'a>(&'a self, lines: Vec<Line<'a>>) -> Result<Vec<Entry<'a>>, PartsError> {
        let mut finder = Finder::of(&self.0);
        let mut entry = |line| match line {
            Line::Begin(name) => Ok(Entry::Begin(name)),
            Line::End => Ok(Entry::End),
            Line::Known(name) => match finder.find(name) {
                Some(part) => Ok(Entry::Known(part)),
                None => Err(PartsError::Unknown(name.to_owned())),
            },
            Line::New(name, text) => match finder.find(name) {
                Some(part) if part.source.text == text => Ok(Entry::Known(part)),
                Some(_) => {
                    Err(PartsError::Form(format!("part {name} has another text than before")))
                }
                None => Ok(Entry::New(name, text)),
            },
        };
        lines.into_iter().map(&mut entry).collect()
    }
}

fn closed((name, list): (&str, Vec<Directive>)) -> Directive {
    Directive::new(name, [""; 0]).with_block(list)
}

impl Part {
    /// The part, and the error that stopped the parser.
    fn read(name: &str, text: &[u8], file: u32) -> (Part, Option<Error>) {
        let mut list = Vec::new();
        let broken = read_part(text, file, &mut list).err();
        let called = PathBuf::from(format!("part {name}"));
        let source = SourceText { name: called, text: text.to_vec(), command_line: false };
        (Part { name: name.into(), file, source: Arc::new(source), list }, broken)
    }
}

fn lines(bytes: &[u8]) -> Result<Vec<Line<'_>>, PartsError> {
    let form = |text: String| PartsError::Form(text);
    let begin = || form("the body does not begin with \"weir parts 1\"".to_owned());
    let mut rest = bytes.strip_prefix(MAGIC).ok_or_else(begin)?;
    let mut lines = Vec::new();
    let mut in_block = false;
    while !rest.is_empty() {
        let number = lines.len() + 1;
        let wrong = |why: &str| form(format!("entry {number} {why}"));
        let shown = rest.get(..LONGEST_LINE).unwrap_or(rest);
        let end = shown.iter().position(|byte| *byte == b'\n');
        let end = end.ok_or_else(|| wrong("is no line"))?;
        let (line, after) = rest.split_at(end);
        rest = after.get(1..).unwrap_or_default();
        let line = std::str::from_utf8(line).map_err(|_| wrong("is no line"))?;
        let words: Vec<&str> = line.split(' ').collect();
        let entry = match words.as_slice() {
            ["part", name, length] if is_name(name) => {
                let length = length.parse().ok();
                let parted = length.and_then(|length: usize| rest.split_at_checked(length));
                let (text, after) = parted.ok_or_else(|| wrong("has another length"))?;
                rest = after;
                Line::New(name, text)
            }
            ["part", name] if is_name(name) => Line::Known(name),
            ["begin", name] if is_name(name) && !in_block => {
                in_block = true;
                Line::Begin(name)
            }
            ["end"] if in_block => {
                in_block = false;
                Line::End
            }
            _ => return Err(wrong("is not \"part NAME [LENGTH]\", \"begin BLOCK\" or \"end\"")),
        };
        lines.push(entry);
    }
    match in_block {
        true => Err(form("a block has no \"end\"".to_owned())),
        false => Ok(lines),
    }
}

fn is_name(name: &str) -> bool {
    let may = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(may)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{is_same, path_of, read_text_with};
    use proptest::prelude::*;
    use std::path::Path;

    const GLOBALS: Option<&str> = Some("daemon off;");

    /// A body. Parts in `known` come as names.
    fn body(main: &[(&str, &str)], http: &[(&str, &str)], known: &Parts) -> Vec<u8> {
        let part = |(name, text): &(&str, &str)| match Finder::of(&known.0).find(name).is_some() {
            true => format!("part {name}\n"),
            false => format!("part {name} {}\n{text}", text.len()),
        };
        let all = |parts: &[(&str, &str)]| parts.iter().map(part).collect::<String>();
        format!("weir parts 1\n{}begin http\n{}end\n", all(main), all(http)).into_bytes()
    }

    fn address(tree: &ConfigTree, at: usize) -> usize {
        tree.main.last().unwrap().block()[at].shared_block().unwrap().address()
    }

    #[test]
    fn known_parts_are_the_same_blocks_and_errors_name_the_part_and_the_line() {
        let main = [("m", "events { }\n")];
        let (a, b) = (("a", "server { return 200; }\n"), ("b", "server { return 404; }\n"));
        let bytes = body(&main, &[a, b], &Parts::default());
        let (old, parts) = Parts::default().read(&bytes, GLOBALS).unwrap();
        assert!(old.broken.is_none());
        // One part is gone, and one is new before the one that stays.
        let c = ("c", "sendfile on;\nserver {\n    retrun 200;\n}\n");
        let (new, _) = parts.read(&body(&main, &[c, b], &parts), GLOBALS).unwrap();
        assert_eq!(address(&new, 2), address(&old, 1));
        let error = crate::check(&new, &|_, _| true).unwrap_err();
        let text = new.sources.explain(&error);
        assert!(text.starts_with("unknown directive \"retrun\" in part c:3\n"), "{text}");
        assert!(text.contains("retrun 200;") && text.contains('^'), "{text}");
        assert_eq!(path_of(&new.main, &error), Some(vec![2, 1, 0]));
        // A known part still has its text.
        let error = new.main[2].block()[2].error("x");
        assert_eq!(new.sources.first_line(&error), "x in part b:1");
        assert_eq!(new.sources.first_line(&new.main[0].error("x")), "x in command line");
    }

    #[test]
    fn a_part_that_is_no_list_of_directives_breaks_the_configuration() {
        let of = |text: &str| {
            let bytes = body(&[], &[("a", text), ("b", "server { }\n")], &Parts::default());
            let (tree, _) = Parts::default().read(&bytes, None).unwrap();
            tree.broken.map(|error| error.message).unwrap_or_default()
        };
        assert_eq!(of("server { }\n"), "");
        assert_eq!(of("} server {\n"), "unexpected \"}\"");
        assert!(of("server {\n").starts_with("unexpected end of file"));
        assert!(of("include x;\n").contains("\"include\" directive is not allowed"));
    }

    #[test]
    fn other_forms_are_refused() {
        let (_, parts) = Parts::default().read(b"weir parts 1\npart a 2\nx;", None).unwrap();
        let of = |text: &str| parts.read(text.as_bytes(), None).map(drop);
        for text in ["part b\n", "part b 2\nx;part b\n"] {
            let unknown = PartsError::Unknown("b".to_owned());
            assert_eq!(of(&format!("weir parts 1\n{text}")), Err(unknown));
        }
        for text in [
            "",
            "weir parts 2\n",
            "weir parts 1\npart",
            "weir parts 1\npart\n",
            "weir parts 1\npart a/b 0\n",
            "weir parts 1\npart b 3\nx;",
            "weir parts 1\npart b -1\n",
            "weir parts 1\nend\n",
            "weir parts 1\nbegin http\n",
            "weir parts 1\nbegin http\nbegin server\nend\nend\n",
            // One name, two texts.
            "weir parts 1\npart a 2\ny;",
            "weir parts 1\npart b 2\nx;part b 2\ny;",
        ] {
            assert!(matches!(of(text), Err(PartsError::Form(_))), "{text:?}");
        }
        for text in ["part a\n", "part a\npart a\n", "part a 2\nx;", "part b 2\nx;part b 2\nx;", ""]
        {
            assert_eq!(of(&format!("weir parts 1\n{text}")), Ok(()), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn parts_equal_their_concatenated_texts(steps in proptest::collection::vec("[a-h]{0,8}", 1..8)) {
            let texts: HashMap<String, String> =
                ('a'..='h').map(|c| (c.to_string(), format!("server {{\nreturn {c};\n}} map $a $b {{ {c} 1; }}\n"))).collect();
            let mut parts = Parts::default();
            for step in steps {
                let names: Vec<String> = step.chars().map(String::from).collect();
                let http: Vec<_> = names.iter().map(|name| (name.as_str(), texts[name].as_str())).collect();
                // A name that comes twice has its directives twice.
                let (tree, next) = parts.read(&body(&[("m", "events { }\n")], &http, &parts), GLOBALS).unwrap();
                let whole: String = http.iter().map(|(_, text)| *text).collect();
                let whole = format!("events {{ }} http {{ {whole} }}");
                let whole = read_text_with(Path::new("/t"), whole.as_bytes(), GLOBALS);
                prop_assert!(tree.broken.is_none() && is_same(&tree.main, &whole.main));
                // Each directive points to its own line of its own text.
                for directive in tree.main.last().unwrap().block() {
                    for pos in [directive.name.pos, directive.end] {
                        let source = tree.sources.get(pos.file).unwrap();
                        let line = source.text.split(|b| *b == b'\n').nth(pos.line as usize - 1).unwrap();
                        prop_assert!(line.windows(directive.name.bytes.len()).any(|part| part == directive.name.bytes));
                    }
                }
                prop_assert_eq!(next.0.len(), names.len() + 1);
                parts = next;
            }
        }
    }
}
