//! Runs the code of a block.

use bytes::Bytes;
use weir_conf::Pos;
use weir_engine::FileKind;
use weir_log::Level;
use weir_proto::uri::{Unescape, unescape};

use super::Conf;
use super::code::{FileTest, Op, Rewrite, Test, Then, is_redirect};
use crate::files::{self, realpath};
use crate::modules::lua;
use crate::phases::Step;
use crate::regex::Matched;
use crate::request::Request;
use weir_values::Subject;
use weir_values::Template;

/// The text of a `return` without text.
static NOTHING: Template = Template::EMPTY;

/// The state of running code.
struct RewriteRun {
    conf: &'static Conf,
    /// The index of the next operation.
    at: usize,
    /// Whether captures of an escaped path are escaped. It is false after the first `rewrite` that
    /// matched.
    escape_captures: bool,
    /// Whether `root` may have another value since it was last resolved.
    root_changed: bool,
}

/// Why the code stopped.
enum RewriteStop {
    /// The end of the code.
    End(Step),
    /// A file must be tested. If the test fails, the next `len` operations are skipped.
    File { kind: FileTest, path: Vec<u8>, not: bool, len: usize },
    /// `$realpath_root` may be needed, and must be resolved on the disk first.
    Root,
}

/// Runs code that tests no file.
pub fn at_once(r: &mut Request, conf: &'static Conf) -> Step {
    match RewriteRun::new(conf).steps(r) {
        RewriteStop::End(step) => step,
        // Unreachable: `with_files` runs such code.
        RewriteStop::File { .. } | RewriteStop::Root => Step::Status(500),
    }
}

/// Runs code that tests files, without blocking the loop.
pub async fn with_files(r: &mut Request, conf: &'static Conf) -> Step {
    let mut run = RewriteRun::new(conf);
    loop {
        match run.steps(r) {
            RewriteStop::End(step) => return step,
            RewriteStop::File { kind, path, not, len } => {
                let holds = file_holds(r, kind, &path).await != not;
                run.branch(r, holds, len);
            }
            RewriteStop::Root => realpath::prepare(r).await,
        }
    }
}

impl RewriteRun {
    fn new(conf: &'static Conf) -> RewriteRun {
        RewriteRun { conf, at: 0, escape_captures: true, root_changed: false }
    }

    fn steps(&mut self, r: &mut Request) -> RewriteStop {
        let code = self.conf.code.as_slice();
        while let Some(op) = code.get(self.at) {
            // The last operation may have changed a variable of `root`.
            if std::mem::take(&mut self.root_changed) {
                return RewriteStop::Root;
            }
            self.at += 1;
            self.root_changed = r.site.asks_realpath;
            match op {
                Op::Rewrite(rewrite) => {
                    if let Some(step) = self.rewrite(r, rewrite) {
                        return RewriteStop::End(step);
                    }
                }
                Op::Return { status, text, line } => {
                    self.answers(r, *line);
                    return RewriteStop::End(answer(r, *status, text.as_ref()));
                }
                Op::Break => {
                    r.rewritten_in_place |= std::mem::take(&mut r.path_changed);
                    return RewriteStop::End(Step::Next);
                }
                Op::Set { variable, value } => {
                    let value = self.value(r, value);
                    r.store_variable(*variable, value);
                }
                Op::SetByLua { variable, script, args } => {
                    let args = args.iter().map(|arg| self.value(r, arg)).collect();
                    match lua::value(r, script, args) {
                        Ok(value) => r.store_variable(*variable, value),
                        Err(step) => return RewriteStop::End(step),
                    }
                }
                Op::If { test: Test::File { kind, path, not }, len, .. } => {
                    let mut name = self.value(r, path);
                    if files::climbs(r, &name, path) {
                        name.clear();
                    }
                    return RewriteStop::File { kind: *kind, path: name, not: *not, len: *len };
                }
                Op::If { test, len, .. } => match self.holds(r, test) {
                    Ok(holds) => self.branch(r, holds, *len),
                    Err(step) => return RewriteStop::End(step),
                },
            }
        }
        RewriteStop::End(Step::Next)
    }

    /// Enters the block of the `if` that was just tested, or skips it.
    fn branch(&mut self, r: &mut Request, holds: bool, len: usize) {
        if !holds {
            self.at += len;
            return;
        }
        if let Some(Op::If { block: Some(id), .. }) = self.conf.code.get(self.at - 1) {
            r.location = r.site.location(*id);
            if r.conf().core.names_content {
                r.chosen_content = r.conf().core.content.as_ref();
            }
            crate::core::enter::settings_changed(r);
        }
    }

    fn value(&self, r: &mut Request, template: &Template) -> Vec<u8> {
        let mut out = Vec::new();
        let escape = self.escape_captures && was_escaped(r);
        template.eval_escaping(r, escape, &mut out);
        out
    }

    fn holds(&self, r: &mut Request, test: &Test) -> Result<bool, Step> {
        match test {
            Test::True(variable) => {
                let value = r.variable_value(*variable).unwrap_or_default();
                Ok(!matches!(value.as_slice(), b"" | b"0"))
            }
            Test::Equal { variable, value, not } => {
                let left = r.variable_value(*variable).unwrap_or_default();
                Ok((left == self.value(r, value)) != *not)
            }
            Test::Match { variable, pattern, not } => {
                let subject = r.variable_value(*variable).unwrap_or_default();
                match self.matched(r, pattern, &subject) {
                    Matched::Failed => Err(Step::Status(500)),
                    matched => Ok((matched == Matched::Yes) != *not),
                }
            }
            // The caller runs this test, since it takes time.
            Test::File { .. } => Ok(false),
        }
    }

    fn matched(&self, r: &mut Request, pattern: &crate::regex::Regex, subject: &[u8]) -> Matched {
        let matched = pattern.try_match(r, subject);
        let verb = match matched {
            Matched::Yes => "matches",
            Matched::No => "does not match",
            Matched::Failed => return matched,
        };
        if self.conf.log {
            let (text, subject) = (pattern.text(), weir_log::Bytes(subject));
            r.log(Level::Notice, format_args!("\"{text}\" {verb} \"{subject}\""));
        }
        matched
    }

    fn rewrite(&mut self, r: &mut Request, rewrite: &Rewrite) -> Option<Step> {
        let path = std::mem::take(&mut r.path);
        let matched = self.matched(r, &rewrite.pattern, &path);
        r.path = path;
        match matched {
            Matched::No => return None,
            Matched::Failed => return Some(Step::Status(500)),
            Matched::Yes => {}
        }
        (r.internal, r.unchanged_path) = (true, false);
        r.rewritten_in_place |= rewrite.then == Then::Break;
        r.path_changed = rewrite.then != Then::Break;
        self.escape_captures = false;
        if let Then::Redirect(status) = rewrite.then {
            self.answers(r, rewrite.line);
            self.redirect(r, rewrite);
            return Some(Step::Status(status));
        }
        if let Some(end) = self.replace(r, rewrite) {
            return Some(end);
        }
        (rewrite.then != Then::Go).then_some(Step::Next)
    }

    fn answers(&self, r: &Request, line: Pos) {
        if let Some(on_answer) = self.conf.on_answer {
            on_answer(r, line);
        }
    }

    /// Redirects the client to the replacement.
    fn redirect(&self, r: &mut Request, rewrite: &Rewrite) {
        let (mut text, mut url) = (Vec::new(), Vec::new());
        let escape = was_escaped(r);
        rewrite.path.eval_escaping(r, escape, &mut text);
        let read = unescape(Unescape::Redirect, &text, &mut url);
        url.extend_from_slice(text.get(read..).unwrap_or_default());
        if rewrite.keep_args && !r.args.is_empty() {
            url.push(if rewrite.has_query { b'&' } else { b'?' });
            url.extend_from_slice(&r.args);
        }
        if self.conf.log {
            let url = weir_log::Bytes(&url);
            r.log(Level::Notice, format_args!("rewritten redirect: \"{url}\""));
        }
        r.response.location = Some(url);
    }

    /// Replaces path and query string.
    fn replace(&self, r: &mut Request, rewrite: &Rewrite) -> Option<Step> {
        let mut path = Vec::new();
        rewrite.path.eval_escaping(r, false, &mut path);
        if let Some(template) = &rewrite.args {
            let mut args = Vec::new();
            let escape = was_escaped(r);
            template.eval_escaping(r, escape, &mut args);
            if rewrite.keep_args && !r.args.is_empty() {
                args.push(b'&');
                args.extend_from_slice(&r.args);
            }
            (r.args, r.args_set) = (args, true);
        } else if !rewrite.keep_args {
            r.args_set |= !r.args.is_empty();
            r.args.clear();
        }
        r.path = path;
        if self.conf.log {
            let (path, args) = (weir_log::Bytes(&r.path), weir_log::Bytes(&r.args));
            r.log(Level::Notice, format_args!("rewritten data: \"{path}\", args: \"{args}\""));
        }
        if r.path.is_empty() {
            r.log(Level::Error, format_args!("the rewritten URI has a zero length"));
            return Some(Step::Status(500));
        }
        None
    }
}

/// Whether the client's path had escapes. Captures of it are then escaped in query strings and
/// URLs.
fn was_escaped(r: &Request) -> bool {
    r.head().quoted || r.head().plus
}

/// Runs `return`. The text becomes the `Location` of a redirect or the body of another response.
fn answer(r: &mut Request, status: u16, text: Option<&Template>) -> Step {
    let has_text = text.is_some_and(|text| text.constant() != Some(b""));
    if status >= 400 && !has_text {
        return Step::Status(status);
    }
    let text = text.unwrap_or(&NOTHING);
    // Before the text is evaluated, since variables may depend on the body's end.
    if let Err(error) = r.discard_received() {
        return error.into();
    }
    // Before the text is evaluated, since it may contain `$status`.
    r.response.status = status;
    if is_redirect(status) {
        r.invite();
        r.response.location = Some(text.eval(r).into_owned());
        return Step::Status(status);
    }
    let bytes = match text.shared() {
        Some(bytes) => bytes,
        None => Bytes::from(text.eval(r).into_owned()),
    };
    r.set_content_type();
    Step::Respond(bytes)
}

async fn file_holds(r: &mut Request, kind: FileTest, path: &[u8]) -> bool {
    let info = match files::stat(r, path).await {
        Ok(found) => found.0,
        Err(error) => {
            if !error.is_absent() {
                error.log(r, Level::Crit, path);
            }
            return false;
        }
    };
    match kind {
        FileTest::Plain => info.kind == FileKind::File,
        FileTest::Directory => info.kind == FileKind::Directory,
        FileTest::Exists => matches!(info.kind, FileKind::File | FileKind::Directory),
        FileTest::Executable => info.permissions & 0o100 != 0,
    }
}
