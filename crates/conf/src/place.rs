//! Trees of other programs come as bytes. Each of their directives gets a position that an error
//! can name.

use std::path::Path;

use crate::error::Error;
use crate::files::FileTexts;
use crate::parser::{Form, form_of, read_text_with};
use crate::print;
use crate::source::Pos;
use crate::tree::{ConfigTree, Directive, DirectiveBody, Word};
use crate::wire;

/// The most bytes of a word that are shown.
const SHOWN: usize = 100;

/// Reads a tree that another program has written with [`write_bytes`](crate::write_bytes), and the
/// files that came with it. The directives of `-g` come first. `None` if the bytes are no tree.
///
/// A position in a text that came with the tree is kept. Every other directive gets a line in a
/// text called `name`, which is made only to be shown. A directive that no text can contain, such
/// as an `include`, is an error in [`ConfigTree::broken`].
pub fn read_tree(
    bytes: &[u8],
    name: &Path,
    globals: Option<&str>,
) -> Option<(ConfigTree, FileTexts)> {
    let (sent, files) = wire::read_bytes(bytes)?;
    let mut tree = read_text_with(name, b"", globals);
    let base = tree.sources.iter().count() as u32;
    let known = sent.sources.iter().count() as u32;
    sent.sources.iter().for_each(|source| {
        tree.sources.add(source.clone());
    });
    let mut places = Places { text: Vec::new(), line: 1, base, known, broken: None };
    let mut main = sent.main;
    places.list(&mut main, Form::Directives, 0);
    tree.main.append(&mut main);
    tree.broken = tree.broken.or(places.broken);
    tree.sources.set_text(0, places.text);
    Some((tree, files))
}

/// The path of the directive that an error is about: its index in the outermost list, then its
/// index in the block of that, and so on. `None` if the error is about no directive.
pub fn path_of(main: &[Directive], error: &Error) -> Option<Vec<u32>> {
    let place = error.mark.or(error.at)?;
    let mut path = Vec::new();
    find(main, place, &mut path).then_some(path)
}

fn find(list: &[Directive], place: Pos, path: &mut Vec<u32>) -> bool {
    for (n, directive) in list.iter().enumerate() {
        path.push(n as u32);
        let words = std::iter::once(&directive.name).chain(&directive.args);
        let own = [directive.end, directive.close];
        let own = words.map(|word| word.pos).chain(own).any(|pos| pos == place);
        if own || find(directive.block(), place, path) {
            return true;
        }
        path.pop();
    }
    false
}

struct Places {
    /// The text of the directives so far.
    text: Vec<u8>,
    line: u32,
    /// The number of sources before those that came with the tree.
    base: u32,
    /// The number of sources that came with the tree.
    known: u32,
    broken: Option<Error>,
}

impl Places {
    fn list(&mut self, list: &mut [Directive], form: Form, depth: usize) {
        for directive in list {
            self.directive(directive, form, depth);
        }
    }

    fn directive(&mut self, directive: &mut Directive, form: Form, depth: usize) {
        let begin = self.text.len();
        self.text.resize(begin + depth * 4, b' ');
        self.word(&mut directive.name, begin);
        for arg in &mut directive.args {
            self.text.push(b' ');
            self.word(arg, begin);
        }
        let end = self.here(begin);
        directive.end = self.kept(directive.end).unwrap_or(end);
        let refused = print::refusal(directive, form);
        match &mut directive.body {
            DirectiveBody::None => self.text.extend_from_slice(b";\n"),
            DirectiveBody::Raw(_) => self.text.extend_from_slice(b" { ... }\n"),
            DirectiveBody::Block(_) => self.text.extend_from_slice(b" {\n"),
        }
        self.line += 1;
        let mut close = directive.end;
        if let DirectiveBody::Block(inside) = &mut directive.body {
            self.list(inside.edit(), form_of(&directive.name), depth + 1);
            let begin = self.text.len();
            self.text.resize(begin + depth * 4, b' ');
            close = self.here(begin);
            self.text.extend_from_slice(b"}\n");
            self.line += 1;
        }
        directive.close = self.kept(directive.close).unwrap_or(close);
        if let (Some(why), None) = (refused, &self.broken) {
            self.broken = Some(directive.problem(why));
        }
    }

    fn word(&mut self, word: &mut Word, begin: usize) {
        word.pos = self.kept(word.pos).unwrap_or(self.here(begin));
        let shown = word.bytes.get(..SHOWN).unwrap_or(&word.bytes);
        if !shown.is_empty() && shown.iter().all(u8::is_ascii_graphic) {
            self.text.extend_from_slice(shown);
        } else {
            self.text.extend_from_slice(format!("{:?}", String::from_utf8_lossy(shown)).as_bytes());
        }
        if shown.len() < word.bytes.len() {
            self.text.extend_from_slice(b"...");
        }
    }

    /// The position, if it is in a text that came with the tree.
    fn kept(&self, pos: Pos) -> Option<Pos> {
        (pos.file < self.known).then(|| Pos { file: pos.file + self.base, ..pos })
    }

    fn here(&self, begin: usize) -> Pos {
        Pos { file: 0, line: self.line, column: (self.text.len() - begin) as u32 + 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{check, is_same, read_text, write_bytes};

    fn sent(main: Vec<Directive>) -> ConfigTree {
        let tree = ConfigTree { sources: Default::default(), main, broken: None };
        let bytes = write_bytes(&tree.sources, &tree.main, &FileTexts::default());
        let (back, _) =
            read_tree(&bytes, Path::new("/etc/tree"), Some("worker_processes 2;")).unwrap();
        assert!(is_same(&back.main[1..], &tree.main));
        back
    }

    fn nothing() -> [&'static str; 0] {
        []
    }

    fn complaint(tree: &ConfigTree) -> (String, Option<Vec<u32>>) {
        let error = check(tree, &|_, _| true).unwrap_err();
        (tree.sources.explain(&error), path_of(&tree.main, &error))
    }

    #[test]
    fn an_error_names_the_line_and_the_path_of_its_directive() {
        let location = Directive::new("location", ["/a b"])
            .with_block(vec![Directive::new("retrun", ["200"])]);
        let server = Directive::new("server", nothing()).with_block(vec![location]);
        let http = Directive::new("http", nothing()).with_block(vec![server]);
        let events = Directive::new("events", nothing()).with_block(Vec::new());
        let (text, path) = complaint(&sent(vec![events, http]));
        assert!(text.starts_with("unknown directive \"retrun\" in /etc/tree:6\n"), "{text}");
        assert!(text.contains("  6 |             retrun 200;\n    |             ^"), "{text}");
        assert_eq!(path, Some(vec![2, 0, 0, 0]));
    }

    #[test]
    fn places_in_texts_that_came_along_stay() {
        let text = b"events { }\nhttp {\n  servr { } }";
        let tree = read_text(Path::new("Ingress shop/web"), text);
        let bytes = write_bytes(&tree.sources, &tree.main, &FileTexts::default());
        let (tree, _) = read_tree(&bytes, Path::new("/etc/tree"), None).unwrap();
        let (text, path) = complaint(&tree);
        assert!(text.starts_with("unknown directive \"servr\" in Ingress shop/web:3\n"), "{text}");
        assert!(text.contains("  3 |   servr { } }\n    |   ^"), "{text}");
        assert_eq!(path, Some(vec![1, 0]));
    }

    #[test]
    fn a_tree_that_no_text_can_contain_is_refused() {
        let events = || Directive::new("events", nothing()).with_block(Vec::new());
        let (text, path) = complaint(&sent(vec![events(), Directive::new("include", ["/etc/x"])]));
        assert!(text.contains("would be read as a file to include in /etc/tree:3"), "{text}");
        assert_eq!(path, Some(vec![2]));
        let mut raw = events();
        raw.body = DirectiveBody::Raw(b"x".to_vec());
        assert!(complaint(&sent(vec![raw])).0.contains("a body of the wrong kind"));
        assert!(read_tree(b"no tree", Path::new("x"), None).is_none());
    }
}
