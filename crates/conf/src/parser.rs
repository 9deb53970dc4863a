//! Builds the tree from statements, across all included files. nginx: ngx_conf_parse(),
//! ngx_conf_include().

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::block::Block;
use crate::error::{Error, Level};
use crate::glob;
use crate::lexer::{Lexer, Statement, StatementEnd};
use crate::lua;
use crate::source::{COMMAND_LINE, Pos, SourceText, Sources};
use crate::tree::{ConfigTree, Directive, DirectiveBody, Word};

/// The limit on nested includes, which stops files that include each other. nginx goes on until it
/// has no descriptors left.
const DEEPEST_INCLUDE: u32 = 100;

/// Each file may include two others, so that depth alone does not bound the time.
const MOST_INCLUDES: u32 = 100_000;

/// nginx's words for a file that ends within a block.
const BLOCK_CUT_OFF: &str = "unexpected end of file, expecting \"}\"";

/// The limit on nested blocks, which protects the stack.
pub(crate) const DEEPEST_BLOCK: u32 = 200;

/// Reads a configuration: first the directives of `-g`, then the file at `path` with everything
/// that it includes. `path` should be absolute; includes are relative to its directory.
///
/// Reading never fails as such: what stops it is in [`ConfigTree::broken`].
pub fn read(path: &Path, globals: Option<&str>) -> ConfigTree {
    let mut reader = FileReader::new(path);
    let mut main = Vec::new();
    let broken = reader.whole(path, globals, &mut main).err();
    ConfigTree { sources: reader.sources, main, broken }
}

/// Reads a text as if it were the file at `path`.
pub fn read_text(path: &Path, text: &[u8]) -> ConfigTree {
    read_text_with(path, text, None)
}

/// As [`read_text`], with the directives of `-g` first. Includes are relative to the directory of
/// `path`.
pub fn read_text_with(path: &Path, text: &[u8], globals: Option<&str>) -> ConfigTree {
    let mut reader = FileReader::new(path);
    let mut main = Vec::new();
    let source = SourceText { name: path.to_owned(), text: text.to_vec(), command_line: false };
    let file = reader.sources.add(source);
    let globals = globals.map_or(Ok(()), |globals| reader.globals(globals, &mut main));
    let broken = globals.and_then(|()| reader.text(file, Form::Directives, &mut main)).err();
    ConfigTree { sources: reader.sources, main, broken }
}

/// Reads directives of a stranger. `include`, which would read files, is an error.
pub fn read_fragment(name: &Path, text: &[u8]) -> ConfigTree {
    let mut reader = FileReader { opens_files: false, ..FileReader::new(name) };
    let mut main = Vec::new();
    let source = SourceText { name: name.to_owned(), text: text.to_vec(), command_line: false };
    let file = reader.sources.add(source);
    let broken = reader.text(file, Form::Directives, &mut main).err();
    ConfigTree { sources: reader.sources, main, broken }
}

/// Reads the directives of `-g`, the first text of a configuration.
pub(crate) fn read_globals(
    globals: &str,
    out: &mut Vec<Directive>,
    broken: &mut Option<Error>,
) -> SourceText {
    let mut reader = FileReader::new(Path::new(""));
    *broken = reader.globals(globals, out).err();
    reader.sources.get(0).cloned().unwrap_or_default()
}

/// Reads directives that may not include files. `file` is the index of their text.
pub(crate) fn read_part(text: &[u8], file: u32, out: &mut Vec<Directive>) -> Result<(), Error> {
    let mut reader = FileReader { opens_files: false, ..FileReader::new(Path::new("")) };
    let mut lexer = Lexer::new(text, file, false);
    reader.statements(&mut lexer, StatementParent::File, Form::Directives, out).map(drop)
}

struct FileReader {
    sources: Sources,
    dir: PathBuf,
    opens_files: bool,
    includes: u32,
    include_depth: u32,
    block_depth: u32,
}

/// What a statement belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StatementParent {
    File,
    Block,
    CommandLine,
}

/// How the statements of a block are read. Except for `Directives`, the first word of a line is no
/// directive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Directives,
    /// `include` is a directive, whatever follows.
    Types,
    /// `include` is a directive if one word follows. Otherwise the module reads the line.
    Pairs,
    /// `include` is an ordinary word.
    Plain,
}

impl FileReader {
    fn new(path: &Path) -> FileReader {
        FileReader {
            sources: Sources::default(),
            dir: directory(path),
            opens_files: true,
            includes: 0,
            include_depth: 0,
            block_depth: 0,
        }
    }

    fn whole(
        &mut self,
        path: &Path,
        globals: Option<&str>,
        out: &mut Vec<Directive>,
    ) -> Result<(), Error> {
        globals.map_or(Ok(()), |globals| self.globals(globals, out))?;
        self.file(path, None, Form::Directives, out)
    }

    /// Reads the directives of `-g`.
    fn globals(&mut self, globals: &str, out: &mut Vec<Directive>) -> Result<(), Error> {
        if globals.is_empty() {
            return Ok(());
        }
        let (text, name) = (globals.as_bytes().to_vec(), COMMAND_LINE.into());
        let file = self.sources.add(SourceText { name, text, command_line: true });
        self.text(file, Form::Directives, out)
    }

    /// Reads one file. `from` is the position of the `include`.
    fn file(
        &mut self,
        path: &Path,
        from: Option<Pos>,
        form: Form,
        out: &mut Vec<Directive>,
    ) -> Result<(), Error> {
        let file = match self.sources.find(path) {
            Some(file) => file,
            None => {
                let text = load(path, from)?;
                self.sources.add(SourceText { name: path.to_owned(), text, command_line: false })
            }
        };
        self.text(file, form, out)
    }

    fn text(&mut self, file: u32, form: Form, out: &mut Vec<Directive>) -> Result<(), Error> {
        // The text is cloned, since reading it adds sources.
        let Some(source) = self.sources.get(file) else { return Ok(()) };
        let (text, command_line) = (source.text.clone(), source.command_line);
        let around =
            if command_line { StatementParent::CommandLine } else { StatementParent::File };
        let mut lexer = Lexer::new(&text, file, command_line);
        self.statements(&mut lexer, around, form, out).map(drop)
    }

    /// Reads statements up to the end of the block or text. Returns the position of the end.
    fn statements(
        &mut self,
        lexer: &mut Lexer<'_>,
        around: StatementParent,
        form: Form,
        out: &mut Vec<Directive>,
    ) -> Result<Pos, Error> {
        loop {
            let statement = lexer.statement()?;
            let at = statement.at;
            let fail = |message: &str| Err(Error::emerg(message).at(at));
            match statement.stop {
                StatementEnd::Close if around == StatementParent::Block => return Ok(at),
                StatementEnd::Close => return fail("unexpected \"}\""),
                StatementEnd::EndOfText if around == StatementParent::Block => {
                    return fail(BLOCK_CUT_OFF);
                }
                StatementEnd::EndOfText => return Ok(at),
                StatementEnd::Open if around == StatementParent::CommandLine => {
                    return fail("block directives are not supported in -g option");
                }
                StatementEnd::Open if form != Form::Directives => return fail("unexpected \"{\""),
                StatementEnd::Open | StatementEnd::Semicolon => {
                    self.directive(lexer, statement, form, out)?
                }
            }
        }
    }

    fn directive(
        &mut self,
        lexer: &mut Lexer<'_>,
        statement: Statement,
        form: Form,
        out: &mut Vec<Directive>,
    ) -> Result<(), Error> {
        let Statement { words, stop, at } = statement;
        let mut words = words.into_iter();
        let Some(name) = words.next() else { return Ok(()) };
        // The capacity is exact, since a configuration may have very many directives.
        let mut args = Vec::with_capacity(words.len());
        args.extend(words);
        let mut directive = Directive { name, args, body: DirectiveBody::None, end: at, close: at };
        if stop == StatementEnd::Semicolon && includes(&directive, form) {
            return self.include(&directive, form, out);
        }
        let done =
            if stop == StatementEnd::Open { self.body(lexer, &mut directive) } else { Ok(()) };
        // A block that was cut off is kept, too: an error inside comes before its end.
        out.push(directive);
        done
    }

    fn body(&mut self, lexer: &mut Lexer<'_>, directive: &mut Directive) -> Result<(), Error> {
        if directive.name.bytes.ends_with(b"_by_lua_block") {
            return lua_body(lexer, directive);
        }
        if self.block_depth == DEEPEST_BLOCK {
            directive.body = DirectiveBody::Block(Block::default());
            let message = format!("blocks are nested more than {DEEPEST_BLOCK} deep");
            return Err(directive.error(message));
        }
        let mut list = Vec::new();
        self.block_depth += 1;
        let done =
            self.statements(lexer, StatementParent::Block, form_of(&directive.name), &mut list);
        self.block_depth -= 1;
        directive.body = DirectiveBody::Block(Block::new(list));
        directive.close = done.map_err(|error| {
            // The innermost block adds the hint.
            if error.message != BLOCK_CUT_OFF || error.hint.is_some() {
                return error;
            }
            match misplaced(directive.block()) {
                Some(inner) => error.hint(probably_not_closed(inner)),
                None => error.hint(not_closed(directive)),
            }
        })?;
        Ok(())
    }

    fn include(
        &mut self,
        directive: &Directive,
        form: Form,
        out: &mut Vec<Directive>,
    ) -> Result<(), Error> {
        let [pattern] = directive.args.as_slice() else {
            let message = "invalid number of arguments in \"include\" directive";
            return Err(directive.error(message));
        };
        if !self.opens_files {
            return Err(directive.error("\"include\" directive is not allowed here"));
        }
        if self.include_depth == DEEPEST_INCLUDE {
            let message = format!("includes are nested more than {DEEPEST_INCLUDE} deep");
            return Err(directive.error(message).hint("does a file include itself?"));
        }
        if self.includes == MOST_INCLUDES {
            return Err(directive.error(format!("there are more than {MOST_INCLUDES} includes")));
        }
        self.includes += 1;
        self.include_depth += 1;
        let path = self.dir.join(Path::new(OsStr::from_bytes(&pattern.bytes)));
        let done = if glob::is_pattern(&path) {
            let mut found = glob::expand(&path).into_iter();
            found.try_for_each(|path| self.file(&path, Some(directive.end), form, out))
        } else {
            self.file(&path, Some(directive.end), form, out)
        };
        self.include_depth -= 1;
        done.map_err(|error| match error.at {
            Some(at) if at == directive.end && error.mark.is_none() => error.mark(pattern.pos),
            _ => error,
        })
    }
}

/// The path up to its last slash, as written. Names in messages begin with it.
fn directory(path: &Path) -> PathBuf {
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1);
    PathBuf::from(OsStr::from_bytes(bytes.get(..end).unwrap_or_default()))
}

pub(crate) fn form_of(block: &Word) -> Form {
    match block.bytes.as_slice() {
        b"types" => Form::Types,
        b"map" | b"geo" => Form::Pairs,
        b"split_clients" | b"charset_map" => Form::Plain,
        _ => Form::Directives,
    }
}

/// Whether the statement includes files. A line of a free-form block may only begin with this word.
pub(crate) fn includes(directive: &Directive, form: Form) -> bool {
    directive.name.is("include")
        && match form {
            Form::Directives | Form::Types => true,
            Form::Pairs => directive.args.len() == 1,
            Form::Plain => false,
        }
}

fn lua_body(lexer: &mut Lexer<'_>, directive: &mut Directive) -> Result<(), Error> {
    let rest = lexer.rest();
    match lua::body_length(rest) {
        Ok(length) => {
            directive.body = DirectiveBody::Raw(rest.get(..length).unwrap_or_default().to_vec());
            lexer.skip(length + 1);
            directive.close = lexer.here();
            Ok(())
        }
        Err(message) => {
            lexer.skip(rest.len());
            directive.body = DirectiveBody::Raw(rest.to_vec());
            let error = Error::emerg(message).at(lexer.here()).mark(directive.name.pos);
            Err(error.hint(not_closed(directive)))
        }
    }
}

fn not_closed(directive: &Directive) -> String {
    let (name, line) = (directive.name.lossy(), directive.end.line);
    format!("the block of \"{name}\" in line {line} is not closed")
}

/// The innermost block whose `}` is further left than its name, so it is likely another block's.
fn misplaced(list: &[Directive]) -> Option<&Directive> {
    list.iter().find_map(|directive| {
        let (open, close) = (directive.name.pos, directive.close);
        let left = close.file == open.file && close.line > open.line && close.column < open.column;
        misplaced(directive.block()).or(left.then_some(directive))
    })
}

fn probably_not_closed(directive: &Directive) -> String {
    let close = directive.close.line;
    format!("{}: the \"}}\" in line {close} seems to be another block's", not_closed(directive))
}

/// The bytes of a file. As in nginx, the size is determined first, so a device is an empty file.
fn load(path: &Path, from: Option<Pos>) -> Result<Vec<u8>, Error> {
    let mut file = File::open(path)
        .map_err(|e| Error { at: from, ..Error::emerg(failed("open", path, &e)) })?;
    let unread = |e: io::Error| Error {
        // nginx names no position for this one, but the source line helps.
        mark: from,
        ..Error::new(Level::Crit, failed("pread", path, &e))
    };
    let size = file.metadata().map_err(unread)?.len();
    let mut text = Vec::new();
    file.by_ref().take(size).read_to_end(&mut text).map_err(unread)?;
    Ok(text)
}

/// nginx's text for a failed system call: `open() "P" failed (2: No such file or directory)`.
fn failed(call: &str, path: &Path, error: &io::Error) -> String {
    let code = error.raw_os_error().unwrap_or_default();
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    format!("{call}() \"{}\" failed ({code}: {text})", path.display())
}

#[cfg(test)]
mod tests;
