//! What was found out, as text or as JSON.

use std::fmt::Write;

use serde::Serialize;
use weir_conf::{Directive, Pos, Sources};
use weir_http::explain::{Course, Passed};

use crate::ask::AskedRequest;
use crate::settings::{SettingInForce, chain, held};

/// All that is told.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub request: String,
    /// Where the request comes in.
    pub listen: String,
    /// The server that was selected; none where no answer came.
    pub server: Option<NamedBlock>,
    /// What happened on the way.
    pub steps: Vec<ExecutedBlock>,
    /// The block with the settings in force; none where the request was refused before its first block.
    pub location: Option<NamedBlock>,
    /// The line that answered instead of the location's content.
    pub answered_by: Option<NamedBlock>,
    /// The path as the location sees it.
    pub path: Option<String>,
    pub args: Option<String>,
    /// The answer that came without a location's content.
    pub answer: Option<PredictedAnswer>,
    /// Why that answer came, where no line says so.
    pub reason: Option<String>,
    /// What the cache has for the request, and what it would do.
    pub cache: Vec<String>,
    pub settings: Vec<Setting>,
    /// What was left out.
    pub notes: Vec<String>,
}

/// A block of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct NamedBlock {
    /// As written: `location /x`, or `server` with its names.
    pub text: String,
    pub file: String,
    pub line: u32,
}

/// A block with code that has run.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ExecutedBlock {
    pub block: NamedBlock,
    pub path: String,
    pub notes: Vec<String>,
}

/// What came back.
#[derive(Debug, Serialize)]
pub(crate) struct PredictedAnswer {
    pub status: u16,
    pub location: Option<String>,
    /// Where the body is a text, its beginning.
    pub body: String,
}

/// A directive that is in force.
#[derive(Debug, Serialize)]
pub(crate) struct Setting {
    pub name: String,
    pub value: String,
    pub file: String,
    pub line: u32,
    /// The block around that it comes from.
    pub inherited_from: Option<String>,
}

/// How much of a body is shown.
const SHOWN: usize = 200;

impl Report {
    pub(crate) fn of(
        asked: &AskedRequest,
        listen: String,
        (main, sources): (&[Directive], &Sources),
        course: &Course,
        heard: &[u8],
    ) -> Report {
        let block =
            |passed: &Passed| shown_last(&chain(main, passed.server, passed.block), sources);
        let arrived = course.arrived.as_ref();
        // A refused request has the settings of a server, and has come to no block.
        let is_refused = arrived.is_none() && course.steps.is_empty();
        let at = arrived.or(course.answered.as_ref());
        let last = at.or(course.steps.last());
        let at = at.filter(|_| !is_refused);
        let way = last.map(|passed| chain(main, passed.server, passed.block)).unwrap_or_default();
        let server = way.iter().find(|block| block.name.is("server"));
        let mut notes = Vec::new();
        let lua = |list: &[Directive]| list.iter().any(|d| d.name.lossy().contains("_by_lua"));
        if way.iter().any(|block| lua(block.block())) {
            notes
                .push("scripts in Lua are not run: they may send the request elsewhere".to_owned());
        }
        if way.iter().any(|block| block.block().iter().any(|d| d.name.is("try_files")))
            && arrived.is_some()
        {
            notes.push(
                "try_files looks for files when the request is served, and may send it elsewhere"
                    .to_owned(),
            );
        }
        let answered_by = answered_by(main, course, sources);
        let step = |(i, step): (usize, &Passed)| {
            let block = block(step)?;
            let mut notes = step.notes.clone();
            // The line that answers at last is told at the end.
            if answered_by.is_none() || i + 1 < course.steps.len() {
                let by = line_that_answered(main, step, sources);
                notes.extend(by.map(|by| format!("answered by its {}", by.of_block(&block))));
            }
            let path = text(&step.path);
            (!notes.is_empty()).then_some(ExecutedBlock { block, path, notes })
        };
        Report {
            request: format!(
                "{} {}://{}{}",
                asked.method,
                if asked.secure { "https" } else { "http" },
                asked.host,
                asked.target
            ),
            listen,
            server: server.map(|server| shown(server, sources)),
            steps: course.steps.iter().enumerate().filter_map(step).collect(),
            location: at.and_then(block),
            answered_by,
            path: at.map(|passed| text(&passed.path)),
            args: at.map(|passed| text(&passed.args)),
            answer: arrived.is_none().then(|| answer(heard)).flatten(),
            reason: course.reason.clone(),
            cache: course.cache.clone(),
            settings: held(main, &way).iter().map(|held| setting(held, sources)).collect(),
            notes,
        }
    }

    /// For programs.
    pub(crate) fn json(&self) -> String {
        // Strings and numbers only, so it cannot fail; an empty text would be the least surprise.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let mut out = format!("{}\n", self.request);
        let mut line = |name: &str, text: String| {
            let _ = writeln!(out, "  {name:<9} {text}");
        };
        line("listen", self.listen.clone());
        if let Some(server) = &self.server {
            line("server", server.to_string());
        }
        let first_time = self.first_time();
        for step in self.steps.iter().take(first_time) {
            line("at", format!("{}, with path {}", step.block, step.path));
            step.notes.iter().for_each(|note| line("", note.clone()));
        }
        if first_time < self.steps.len() {
            line("at", format!("the same again, {} more steps", self.steps.len() - first_time));
        }
        match (&self.location, &self.path) {
            (Some(location), Some(path)) => {
                let name =
                    if location.text.starts_with("server") { "no location" } else { "location" };
                line(name, format!("{location}{}", self.end(location)));
                let args = self.args.as_deref().filter(|args| !args.is_empty());
                line(
                    "path",
                    format!("{path}{}", args.map_or(String::new(), |args| format!("?{args}"))),
                );
            }
            _ => line("location", "none: the request was refused before".to_owned()),
        }
        if let Some(answer) = &self.answer {
            let to =
                answer.location.as_ref().map_or(String::new(), |to| format!(", Location: {to}"));
            line("answer", format!("{}{to}", answer.status));
        } else if self.answered_by.is_some() {
            line("answer", "none: the connection is closed".to_owned());
        }
        if let Some(reason) = &self.reason {
            line("", reason.clone());
        }
        for (i, text) in self.cache.iter().enumerate() {
            line(if i == 0 { "cache" } else { "" }, text.clone());
        }
        if !self.settings.is_empty() {
            out.push_str("\n  in force there\n");
        }
        let width = self
            .settings
            .iter()
            .map(|s| s.name.len() + s.value.len() + 1)
            .max()
            .unwrap_or(0)
            .min(64);
        for s in &self.settings {
            let from =
                s.inherited_from.as_ref().map_or(String::new(), |from| format!(", from {from}"));
            let both = format!("{} {}", s.name, s.value);
            let _ = writeln!(out, "    {:<width$}  {}:{}{from}", both.trim_end(), s.file, s.line);
        }
        for note in &self.notes {
            let _ = writeln!(out, "\n  note: {note}");
        }
        out
    }
}

impl Report {
    /// The steps before the first that repeats an earlier one: the way is a cycle from there on.
    fn first_time(&self) -> usize {
        let repeats =
            |(i, step): (usize, &ExecutedBlock)| self.steps.iter().take(i).any(|s| s == step);
        self.steps.iter().enumerate().position(repeats).unwrap_or(self.steps.len())
    }

    /// How the request ended at a block, if it has not come to the block's content.
    fn end(&self, at: &NamedBlock) -> String {
        let Some(by) = &self.answered_by else {
            let before = self.answer.is_some();
            return if before { ", answered before its content" } else { "" }.to_owned();
        };
        format!(", answered by its {}", by.of_block(at))
    }
}

impl NamedBlock {
    /// A line of this block, or of an included file.
    fn of_block(&self, block: &NamedBlock) -> String {
        let NamedBlock { text, file, line } = self;
        match *file == block.file {
            true => format!("\"{text}\" in line {line}"),
            false => format!("\"{text}\" in {file}:{line}"),
        }
    }
}

impl std::fmt::Display for NamedBlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}:{})", self.text, self.file, self.line)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn place(pos: Pos, sources: &Sources) -> (String, u32) {
    let file = sources.get(pos.file).map(|source| source.name.display().to_string());
    (file.unwrap_or_default(), pos.line)
}

/// A block by its first line; a server by its names.
fn shown(block: &Directive, sources: &Sources) -> NamedBlock {
    let (file, line) = place(block.name.pos, sources);
    let mut text = words(block);
    if block.name.is("server") {
        let names = block.block().iter().filter(|d| d.name.is("server_name"));
        let names: Vec<String> =
            names.flat_map(|d| d.args.iter().map(|word| word.lossy().into_owned())).collect();
        text = format!(
            "server {}",
            if names.is_empty() { "without a name".to_owned() } else { names.join(" ") }
        );
    }
    NamedBlock { text, file, line }
}

/// The innermost of some blocks; an `if` with its location.
fn shown_last(way: &[&Directive], sources: &Sources) -> Option<NamedBlock> {
    let (last, around) = way.split_last()?;
    let mut block = shown(last, sources);
    let location = around.iter().rfind(|block| block.name.is("location"));
    if let Some(location) = location.filter(|_| !last.name.is("location")) {
        block.text = format!("{}, {}", words(location), block.text);
    }
    Some(block)
}

/// A directive's words, without its block.
fn words(d: &Directive) -> String {
    std::iter::once(&d.name).chain(&d.args).map(|word| word.lossy()).collect::<Vec<_>>().join(" ")
}

fn setting(held: &SettingInForce<'_>, sources: &Sources) -> Setting {
    let (file, line) = place(held.line.name.pos, sources);
    let quoted = |word: &weir_conf::Word| {
        let text = word.lossy();
        if text.contains([' ', ';', '{']) || text.is_empty() {
            format!("\"{text}\"")
        } else {
            text.into_owned()
        }
    };
    let from = held.inherited.then(|| {
        held.from.map_or("main".to_owned(), |block| match block.name.is("server") {
            true => "server".to_owned(),
            false => words(block),
        })
    });
    let value = match &held.line.body {
        weir_conf::DirectiveBody::Raw(_) => "{ ... }".to_owned(),
        _ => held.line.args.iter().map(quoted).collect::<Vec<_>>().join(" "),
    };
    Setting { name: held.line.name.lossy().into_owned(), value, file, line, inherited_from: from }
}

/// The line of the last block's code that has answered.
fn answered_by(main: &[Directive], course: &Course, sources: &Sources) -> Option<NamedBlock> {
    let last = course.steps.last().filter(|_| course.arrived.is_none())?;
    line_that_answered(main, last, sources)
}

fn line_that_answered(main: &[Directive], step: &Passed, sources: &Sources) -> Option<NamedBlock> {
    let at = step.answer?;
    let way = chain(main, step.server, step.block);
    let (file, line) = place(at, sources);
    Some(NamedBlock { text: name_of_line(way.last()?.block(), at)?, file, line })
}

/// The name of the directive at a place in a block, or in an `if` of it.
fn name_of_line(lines: &[Directive], at: Pos) -> Option<String> {
    lines.iter().find_map(|line| match line.name.pos == at {
        true => Some(line.name.lossy().into_owned()),
        false => name_of_line(line.block(), at),
    })
}

fn answer(heard: &[u8]) -> Option<PredictedAnswer> {
    let text = String::from_utf8_lossy(heard);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let field = |line: &str| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("location").then(|| value.trim().to_owned())
    };
    let body = body.chars().take(SHOWN).collect();
    Some(PredictedAnswer { status, location: head.lines().find_map(field), body })
}
