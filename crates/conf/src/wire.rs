//! A tree and the files that it names, as bytes: from the process that has tested them to those
//! that serve.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::files::FileTexts;
use crate::source::{Pos, SourceText, Sources};
use crate::tree::{ConfigTree, Directive, DirectiveBody, Word};

/// The limit on nested blocks. The parser's is lower.
const DEEPEST: u32 = 256;

/// The first bytes of this format. Another number is another format.
const MAGIC: &[u8] = b"weir tree 1\n";

/// Writes a whole tree, without errors in it, and files. [`read_bytes`] reads them back.
pub fn write_bytes(sources: &Sources, main: &[Directive], files: &FileTexts) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    number(&mut out, sources.iter().count());
    for source in sources.iter() {
        text(&mut out, source.name.as_os_str().as_bytes());
        text(&mut out, &source.text);
        out.push(source.command_line.into());
    }
    block(&mut out, main);
    number(&mut out, files.0.len());
    for (path, contents) in &files.0 {
        text(&mut out, path.as_os_str().as_bytes());
        text(&mut out, contents);
    }
    out
}

/// Reads what [`write_bytes`] has written. `None` if the bytes are something else.
pub fn read_bytes(bytes: &[u8]) -> Option<(ConfigTree, FileTexts)> {
    let bytes = &mut bytes.strip_prefix(MAGIC)?;
    let mut sources = Sources::default();
    for _ in 0..take_number(bytes)? {
        let name = path(take_text(bytes)?);
        let (text, command_line) = (take_text(bytes)?.to_vec(), take(bytes, 1)? != [0]);
        sources.add(SourceText { name, text, command_line });
    }
    let main = take_block(bytes, 0)?;
    let mut files = FileTexts::default();
    for _ in 0..take_number(bytes)? {
        files.0.insert(path(take_text(bytes)?), take_text(bytes)?.to_vec());
    }
    bytes.is_empty().then_some((ConfigTree { sources, main, broken: None }, files))
}

fn path(bytes: &[u8]) -> PathBuf {
    Path::new(OsStr::from_bytes(bytes)).to_owned()
}

fn number(out: &mut Vec<u8>, n: usize) {
    out.extend_from_slice(&(n as u64).to_le_bytes());
}

fn text(out: &mut Vec<u8>, bytes: &[u8]) {
    number(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn pos(out: &mut Vec<u8>, pos: Pos) {
    for n in [pos.file, pos.line, pos.column] {
        out.extend_from_slice(&n.to_le_bytes());
    }
}

fn word(out: &mut Vec<u8>, word: &Word) {
    text(out, &word.bytes);
    pos(out, word.pos);
    out.push(word.quoted.into());
}

fn block(out: &mut Vec<u8>, list: &[Directive]) {
    number(out, list.len());
    for directive in list {
        word(out, &directive.name);
        number(out, directive.args.len());
        directive.args.iter().for_each(|arg| word(out, arg));
        match &directive.body {
            DirectiveBody::None => out.push(0),
            DirectiveBody::Block(inside) => {
                out.push(1);
                block(out, inside);
            }
            DirectiveBody::Raw(raw) => {
                out.push(2);
                text(out, raw);
            }
        }
        pos(out, directive.end);
        pos(out, directive.close);
    }
}

fn take<'a>(bytes: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
    let (now, rest) = bytes.split_at_checked(n)?;
    *bytes = rest;
    Some(now)
}

fn take_number(bytes: &mut &[u8]) -> Option<usize> {
    let n = u64::from_le_bytes(take(bytes, 8)?.try_into().ok()?);
    usize::try_from(n).ok()
}

fn take_text<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = take_number(bytes)?;
    take(bytes, len)
}

fn take_pos(bytes: &mut &[u8]) -> Option<Pos> {
    let mut next = || Some(u32::from_le_bytes(take(bytes, 4)?.try_into().ok()?));
    Some(Pos { file: next()?, line: next()?, column: next()? })
}

fn take_word(bytes: &mut &[u8]) -> Option<Word> {
    let (text, pos) = (take_text(bytes)?.to_vec(), take_pos(bytes)?);
    Some(Word { bytes: text, pos, quoted: take(bytes, 1)? != [0] })
}

fn take_block(bytes: &mut &[u8], depth: u32) -> Option<Vec<Directive>> {
    if depth > DEEPEST {
        return None;
    }
    let mut list = Vec::new();
    for _ in 0..take_number(bytes)? {
        let name = take_word(bytes)?;
        let mut args = Vec::new();
        for _ in 0..take_number(bytes)? {
            args.push(take_word(bytes)?);
        }
        let body = match take(bytes, 1)? {
            [0] => DirectiveBody::None,
            [1] => DirectiveBody::Block(take_block(bytes, depth + 1)?.into()),
            [2] => DirectiveBody::Raw(take_text(bytes)?.to_vec()),
            _ => return None,
        };
        let (end, close) = (take_pos(bytes)?, take_pos(bytes)?);
        list.push(Directive { name, args, body, end, close });
    }
    Some(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{read_file, read_text, with_files};

    const TEXT: &str = "worker_processes 2; events { } http { map $uri $x { default \"a b\"; }\n\
                        server { location / { content_by_lua_block { ngx.say(1) } } } }";

    #[test]
    fn a_tree_and_its_files_come_back_as_they_were() {
        let tree = read_text(Path::new("/etc/nginx.conf"), TEXT.as_bytes());
        let (_, files) =
            with_files(FileTexts::default(), || read_file(Path::new("/proc/self/comm")));
        let bytes = write_bytes(&tree.sources, &tree.main, &files);
        let (back, same) = read_bytes(&bytes).unwrap();
        assert_eq!(back.main, tree.main);
        assert_eq!(same, files);
        assert_eq!(back.sources.get(0).unwrap().text, TEXT.as_bytes());
        assert!((0..bytes.len()).all(|n| read_bytes(&bytes[..n]).is_none()));
    }
}
