//! The text of a configuration, in pieces. A piece that stays the same in the next configuration is
//! printed once.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::slice;
use std::sync::Arc;

use sha1::{Digest as _, Sha1};
use weir_conf::{Directive, DirectiveBody, PrintError};

use super::lines::line;
use super::owners::Owners;
use crate::report::ObjectId;

/// Directives as text, and the owners of its lines.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TextPiece {
    text: Result<Vec<u8>, Unprintable>,
    kind: PieceKind,
    /// The digest of the text, of hexadecimal digits.
    name: Box<str>,
    lines: u32,
    /// The owner of the lines from this one on, counted from 0.
    owners: Vec<(u32, Option<Arc<ObjectId>>)>,
}

/// A directive that no text can have: one of its words is too long, for instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unprintable {
    /// What is wrong with it.
    pub why: PrintError,
    /// The object that asked for it.
    pub owner: Option<Arc<ObjectId>>,
}

impl fmt::Display for Unprintable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.owner {
            Some(owner) => write!(f, "{owner}: {}", self.why),
            None => self.why.fmt(f),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PieceKind {
    Directives,
    /// The line that opens a block.
    Begin(&'static str),
    End,
}

impl TextPiece {
    /// Prints directives that are `depth` blocks deep.
    pub(super) fn of(list: &[Directive], depth: u32, owners: &Owners) -> Arc<TextPiece> {
        let text = weir_conf::print_at(list, depth)
            .map_err(|why| Unprintable { why, owner: refused(list, depth, owners).cloned() });
        debug_assert!(text.as_ref().is_ok_and(|text| reads_back(text, list)) || text.is_err());
        let (kind, name) = (PieceKind::Directives, name(&text));
        let mut piece = TextPiece { text, kind, name, lines: 0, owners: Vec::new() };
        piece.count(list, owners, None);
        piece.owners.shrink_to_fit();
        Arc::new(piece)
    }

    /// The line that opens or closes a block.
    fn edge(kind: PieceKind, text: String) -> Arc<TextPiece> {
        let text = Ok(text.into_bytes());
        Arc::new(TextPiece { name: name(&text), kind, text, lines: 1, owners: Vec::new() })
    }

    fn count(&mut self, list: &[Directive], owners: &Owners, outer: Option<&Arc<ObjectId>>) {
        for directive in list {
            let owner = owners.of(directive).or(outer);
            self.own(owner);
            self.lines += 1;
            match &directive.body {
                DirectiveBody::None => {}
                DirectiveBody::Raw(text) => {
                    let more = text.iter().filter(|byte| **byte == b'\n').count();
                    self.lines += u32::try_from(more).unwrap_or_default();
                }
                DirectiveBody::Block(inner) => {
                    self.count(inner, owners, owner);
                    self.own(owner);
                    self.lines += 1;
                }
            }
        }
    }

    /// Makes `owner` the owner of the next line.
    fn own(&mut self, owner: Option<&Arc<ObjectId>>) {
        if self.owners.last().and_then(|(_, last)| last.as_ref()) != owner {
            self.owners.push((self.lines, owner.cloned()));
        }
    }

    fn owner(&self, line: u32) -> Option<&ObjectId> {
        let after = self.owners.partition_point(|(from, _)| *from <= line);
        let (_, owner) = self.owners.get(after.checked_sub(1)?)?;
        owner.as_deref()
    }
}

/// The owner of the first of these directives that cannot be printed.
fn refused<'o>(list: &[Directive], depth: u32, owners: &'o Owners) -> Option<&'o Arc<ObjectId>> {
    let is_wrong = |d: &&Directive| weir_conf::print_at(slice::from_ref(*d), depth).is_err();
    let wrong = list.iter().find(is_wrong)?;
    refused(wrong.block(), depth + 1, owners).or_else(|| owners.of(wrong))
}

fn name(text: &Result<Vec<u8>, Unprintable>) -> Box<str> {
    let digest = match text {
        Ok(text) => Sha1::digest(text),
        Err(error) => Sha1::digest(error.to_string()),
    };
    format!("{digest:x}").into()
}

/// Whether a text parses to the directives that it was made of, so that no value ends its word.
fn reads_back(text: &[u8], list: &[Directive]) -> bool {
    let back = weir_conf::read_text(Path::new("printed.conf"), text);
    back.broken.is_none() && weir_conf::is_same(&back.main, list)
}

/// A configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigText {
    pieces: Vec<Arc<TextPiece>>,
    /// The index of the piece that closes the block `http`.
    end_of_http: usize,
}

impl ConfigText {
    /// Appends a piece to the open block, or outside of blocks.
    pub(super) fn push(&mut self, piece: Arc<TextPiece>) {
        self.pieces.push(piece);
    }

    pub(super) fn begin(&mut self, block: &'static str) {
        self.push(TextPiece::edge(PieceKind::Begin(block), format!("{block} {{\n")));
    }

    pub(super) fn end(&mut self, block: &str) {
        if block == "http" {
            self.end_of_http = self.pieces.len();
        }
        self.push(TextPiece::edge(PieceKind::End, "}\n".to_owned()));
    }

    /// Adds a server at the end of `http`.
    pub(crate) fn add_server(&mut self, list: Vec<Directive>) {
        let server = line("server", []).with_block(list);
        let piece = TextPiece::of(&[server], 1, &Owners::default());
        self.pieces.insert(self.end_of_http, piece);
        self.end_of_http += 1;
    }

    /// The text. An error if a directive cannot be printed.
    pub fn print(&self) -> Result<Vec<u8>, Unprintable> {
        let texts = || self.pieces.iter().map(|piece| piece.text.as_ref());
        let mut size = 0;
        for text in texts() {
            size += text.map_err(Unprintable::clone)?.len();
        }
        let mut out = Vec::with_capacity(size);
        texts().flatten().for_each(|text| out.extend_from_slice(text));
        Ok(out)
    }

    /// The text as [`weir_conf::Parts`], for a weir whose last accepted configuration is `before`.
    /// Parts are named by their digests.
    pub fn parts(&self, before: Option<&ConfigText>) -> Result<Vec<u8>, Unprintable> {
        let known: HashSet<&str> =
            before.into_iter().flat_map(|text| &text.pieces).map(|piece| &*piece.name).collect();
        let mut out = b"weir parts 1\n".to_vec();
        for piece in self.pieces.iter().filter(|piece| piece.lines > 0) {
            let text = piece.text.as_ref().map_err(Unprintable::clone)?;
            let name = &piece.name;
            match piece.kind {
                PieceKind::Begin(block) => {
                    out.extend_from_slice(format!("begin {block}\n").as_bytes())
                }
                PieceKind::End => out.extend_from_slice(b"end\n"),
                PieceKind::Directives if known.contains(&**name) => {
                    out.extend_from_slice(b"part ");
                    out.extend_from_slice(name.as_bytes());
                    out.push(b'\n');
                }
                PieceKind::Directives => {
                    out.extend_from_slice(format!("part {name} {}\n", text.len()).as_bytes());
                    out.extend_from_slice(text);
                }
            }
        }
        Ok(out)
    }

    /// The owner of a line of a part, counted from 1.
    pub fn owner_in(&self, part: &str, line: u32) -> Option<&ObjectId> {
        let piece = self.pieces.iter().find(|piece| &*piece.name == part)?;
        piece.owner(line.checked_sub(1)?)
    }

    /// The digest of the text, made of the digests of its pieces. The same objects and settings
    /// give the same digest in each process.
    pub fn digest(&self) -> String {
        let texts = self.pieces.iter().filter(|piece| piece.lines > 0);
        let digests: Vec<u8> = texts.flat_map(|piece| piece.name.bytes()).collect();
        super::lines::digest(&digests)
    }

    /// The owner of a line of the text, counted from 1. The innermost directive with an owner
    /// counts.
    #[cfg(test)]
    pub fn owner(&self, line: u32) -> Option<&ObjectId> {
        let mut line = line.checked_sub(1)?;
        for piece in &self.pieces {
            match line.checked_sub(piece.lines) {
                Some(rest) => line = rest,
                None => return piece.owner(line),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Settings, Snapshot, translate};

    #[test]
    fn each_line_of_a_location_leads_to_the_ingress_that_asked_for_it() {
        let mut snapshot = Snapshot::default();
        for name in ["one", "two"] {
            let object = serde_json::json!({ "kind": "Ingress", "metadata": { "name": name, "namespace": "a" },
                "spec": { "rules": [{ "host": "a.test", "http": { "paths": [{ "path": format!("/{name}"), "pathType": "Exact",
                "backend": { "service": { "name": "app", "port": { "number": 80 } } } }] } }] } });
            assert_eq!(snapshot.add_text(&object.to_string()), Vec::<String>::new());
        }
        let settings = Settings { without_class: true, ..Settings::default() };
        let made = translate(&snapshot, &settings);
        let text = String::from_utf8(made.text.print().unwrap()).unwrap();
        let owner = |of: &str, after: u32| {
            let line = text.lines().position(|line| line.contains(of)).unwrap() as u32 + 1 + after;
            made.text.owner(line).map(|id| id.name.clone())
        };
        // The same by the part and its line.
        for piece in &made.text.pieces {
            for line in 1..=piece.lines {
                let owner = made.text.owner_in(&piece.name, line);
                assert_eq!(owner, piece.owner(line - 1));
            }
        }
        assert_eq!(made.text.owner_in("unheard-of", 1), None);
        assert_eq!(owner("location = /one", 0).as_deref(), Some("one"));
        assert_eq!(owner("location = /two", 1).as_deref(), Some("two"));
        assert_eq!(owner("location = /two", 2).as_deref(), Some("two"));
        assert_eq!(owner("server_name a.test", 0).as_deref(), Some("one"));
        assert_eq!(owner("server_tokens", 0), None);
        assert_eq!(owner("server_name _", 0), None);
        assert_eq!(made.text.owner(0), None);
        assert_eq!(made.text.owner(u32::MAX), None);
    }

    #[test]
    fn lines_of_the_config_map_lead_to_their_keys() {
        let mut snapshot = Snapshot::default();
        let meta = |name: &str| serde_json::json!({ "name": name, "namespace": "a", "labels": { "kubernetes.io/service-name": "app" } });
        let backend = serde_json::json!({ "service": { "name": "app", "port": { "number": 80 } } });
        for object in [
            serde_json::json!({ "kind": "Service", "metadata": meta("app"), "spec": { "ports": [{ "port": 80 }] } }),
            serde_json::json!({ "kind": "EndpointSlice", "metadata": meta("app-1"), "addressType": "IPv4", "ports": [{ "port": 80 }],
                "endpoints": [{ "addresses": ["10.1.0.1"] }] }),
            serde_json::json!({ "kind": "Ingress", "metadata": meta("one"), "spec": { "rules": [{ "host": "a.test",
                "http": { "paths": [{ "path": "/", "pathType": "Prefix", "backend": backend }] } }] } }),
        ] {
            assert_eq!(snapshot.add_text(&object.to_string()), Vec::<String>::new());
        }
        let map = [
            ("http-snippet", "map $a $in_http { default 1; }"),
            ("main-snippet", "env IN_MAIN;"),
            ("server-snippet", "set $in_server 1;"),
            ("location-snippet", "set $in_location 1;"),
            ("stream-snippet", "map $a $in_stream { default 1; }"),
            ("keep-alive", "77"),
            ("log-format-upstream", "in_format"),
        ];
        let defaults = map.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let settings = Settings { without_class: true, defaults, ..Settings::default() };
        let made = translate(&snapshot, &settings);
        let text = String::from_utf8(made.text.print().unwrap()).unwrap();
        for (sign, key) in [
            ("$in_http", "http-snippet"),
            ("IN_MAIN", "main-snippet"),
            ("$in_server", "server-snippet"),
            ("$in_location", "location-snippet"),
            ("$in_stream", "stream-snippet"),
            ("keepalive_timeout 77s", "keep-alive"),
            ("in_format", "log-format-upstream"),
        ] {
            let lines = text.lines().enumerate().filter(|(_, line)| line.contains(sign));
            let owners: Vec<_> = lines.map(|(n, _)| made.text.owner(n as u32 + 1)).collect();
            assert!(!owners.is_empty(), "{sign}: {text}");
            for owner in owners {
                assert_eq!(owner.map(|id| id.name.as_str()), Some(key), "{sign}");
            }
        }
    }

    #[test]
    fn other_texts_have_other_digests_and_the_same_text_has_the_same() {
        let of = |names: &[&str]| {
            let mut text = translate(&Snapshot::default(), &Settings::default()).text;
            names.iter().for_each(|name| text.add_server(vec![line("server_name", [*name])]));
            text.digest()
        };
        assert_eq!(of(&["a", "b"]), of(&["a", "b"]));
        let all = [of(&[]), of(&["a"]), of(&["b"]), of(&["a", "b"]), of(&["b", "a"])];
        assert_eq!(std::collections::BTreeSet::from(all).len(), 5);
    }

    #[test]
    fn a_script_of_several_lines_moves_the_lines_behind_it() {
        let id = |name: &str| ObjectId {
            kind: "Ingress",
            namespace: String::new(),
            name: name.to_owned(),
        };
        let mut script = line("content_by_lua_block", []);
        script.body = DirectiveBody::Raw(b"\n a()\n b()\n".to_vec());
        let mut first =
            vec![line("location", ["/"]).with_block(vec![script, line("internal", [])])];
        let mut second = vec![line("return", ["200"])];
        let mut owners = Owners::default();
        owners.mark(&id("one"), &mut first);
        owners.mark(&id("two"), &mut second);
        let piece = TextPiece::of(&[first, second].concat(), 0, &owners);
        let text = String::from_utf8(piece.text.clone().unwrap()).unwrap();
        assert_eq!(text.lines().count(), piece.lines as usize);
        let owner = |n: usize| piece.owner(n as u32).unwrap().name.as_str();
        for (n, line) in text.lines().enumerate() {
            assert_eq!(owner(n), if line.starts_with("return") { "two" } else { "one" }, "{text}");
        }
    }
}
