//! The explanation, as text or as JSON.

use std::fmt::Write;

use serde::Serialize;
use weir_conf::{Directive, Pos, Sources};
use weir_http::explain::{Course, Passed};

use crate::ask::AskedRequest;
use crate::settings::{SettingInForce, chain, settings_in_force};

/// The explanation.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub request: String,
    /// The listening socket of the request.
    pub listen: String,
    /// The selected server. None if no answer was made.
    pub server: Option<NamedBlock>,
    /// The blocks whose code the request has passed.
    pub steps: Vec<ExecutedBlock>,
    /// The block whose settings are in force. None if the request was refused before it reached a
    /// block.
    pub location: Option<NamedBlock>,
    /// The directive that answered instead of the location's content.
    pub answered_by: Option<NamedBlock>,
    /// The path when the location was reached.
    pub path: Option<String>,
    pub args: Option<String>,
    /// The answer, if the location's content did not make it.
    pub answer: Option<PredictedAnswer>,
    /// The reason of the answer, if no directive explains it.
    pub reason: Option<String>,
    /// The cached answer for the request, and what the cache would do.
    pub cache: Vec<String>,
    pub settings: Vec<Setting>,
    /// Remarks on what was not evaluated.
    pub notes: Vec<String>,
}

/// A block of the configuration, or a directive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct NamedBlock {
    /// As configured: `location /x`, or `server` with its names.
    pub text: String,
    pub file: String,
    pub line: u32,
}

/// A block whose rewrite code was run.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ExecutedBlock {
    pub block: NamedBlock,
    pub path: String,
    pub notes: Vec<String>,
}

/// The answer.
#[derive(Debug, Serialize)]
pub(crate) struct PredictedAnswer {
    pub status: u16,
    pub location: Option<String>,
    /// The beginning of the body, if it is text.
    pub body: String,
}

/// A directive in force.
#[derive(Debug, Serialize)]
pub(crate) struct Setting {
    pub name: String,
    pub value: String,
    pub file: String,
    pub line: u32,
    /// The outer block that it is inherited from.
    pub inherited_from: Option<String>,
}

/// The most characters of a body that are shown.
const BODY_SHOWN: usize = 200;

impl Report {
    pub(crate) fn of(
        asked: &AskedRequest,
        listen: String,
        (main, sources): (&[Directive], &Sources),
        course: &Course,
        answer_bytes: &[u8],
    ) -> Report {
        let block =
            |passed: &Passed| named_innermost(&chain(main, passed.server, passed.block), sources);
        let arrived = course.arrived.as_ref();
        // A refused request has the settings of a server, but has not reached a block.
        let is_refused = arrived.is_none() && course.steps.is_empty();
        let at = arrived.or(course.answered.as_ref());
        let last = at.or(course.steps.last());
        let at = at.filter(|_| !is_refused);
        let blocks =
            last.map(|passed| chain(main, passed.server, passed.block)).unwrap_or_default();
        let server = blocks.iter().find(|block| block.name.is("server"));
        let mut notes = Vec::new();
        let lua = |list: &[Directive]| list.iter().any(|d| d.name.lossy().contains("_by_lua"));
        if blocks.iter().any(|block| lua(block.block())) {
            notes
                .push("scripts in Lua are not run: they may send the request elsewhere".to_owned());
        }
        if blocks.iter().any(|block| block.block().iter().any(|d| d.name.is("try_files")))
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
            // The directive that made the final answer is shown at the end.
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
            server: server.map(|server| named(server, sources)),
            steps: course.steps.iter().enumerate().filter_map(step).collect(),
            location: at.and_then(block),
            answered_by,
            path: at.map(|passed| text(&passed.path)),
            args: at.map(|passed| text(&passed.args)),
            answer: arrived.is_none().then(|| answer(answer_bytes)).flatten(),
            reason: course.reason.clone(),
            cache: course.cache.clone(),
            settings: settings_in_force(main, &blocks)
                .iter()
                .map(|found| setting(found, sources))
                .collect(),
            notes,
        }
    }

    /// The report as JSON.
    pub(crate) fn json(&self) -> String {
        // Strings and numbers can always be serialized.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// The report as text.
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
    /// The number of steps before the first repeated one. From there on the steps are a cycle.
    fn first_time(&self) -> usize {
        let repeats =
            |(i, step): (usize, &ExecutedBlock)| self.steps.iter().take(i).any(|s| s == step);
        self.steps.iter().enumerate().position(repeats).unwrap_or(self.steps.len())
    }

    /// How the request ended in a block without reaching its content.
    fn end(&self, at: &NamedBlock) -> String {
        let Some(by) = &self.answered_by else {
            let before = self.answer.is_some();
            return if before { ", answered before its content" } else { "" }.to_owned();
        };
        format!(", answered by its {}", by.of_block(at))
    }
}

impl NamedBlock {
    /// The directive, with its file unless it is the block's.
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

/// Names a block by its first line, a server by its names.
fn named(block: &Directive, sources: &Sources) -> NamedBlock {
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

/// Names the innermost block. An `if` is named with its location.
fn named_innermost(blocks: &[&Directive], sources: &Sources) -> Option<NamedBlock> {
    let (last, around) = blocks.split_last()?;
    let mut block = named(last, sources);
    let location = around.iter().rfind(|block| block.name.is("location"));
    if let Some(location) = location.filter(|_| !last.name.is("location")) {
        block.text = format!("{}, {}", words(location), block.text);
    }
    Some(block)
}

/// The words of a directive, without its block.
fn words(d: &Directive) -> String {
    std::iter::once(&d.name).chain(&d.args).map(|word| word.lossy()).collect::<Vec<_>>().join(" ")
}

fn setting(found: &SettingInForce<'_>, sources: &Sources) -> Setting {
    let (file, line) = place(found.line.name.pos, sources);
    let quoted = |word: &weir_conf::Word| {
        let text = word.lossy();
        if text.contains([' ', ';', '{']) || text.is_empty() {
            format!("\"{text}\"")
        } else {
            text.into_owned()
        }
    };
    let from = found.inherited.then(|| {
        found.from.map_or("main".to_owned(), |block| match block.name.is("server") {
            true => "server".to_owned(),
            false => words(block),
        })
    });
    let value = match &found.line.body {
        weir_conf::DirectiveBody::Raw(_) => "{ ... }".to_owned(),
        _ => found.line.args.iter().map(quoted).collect::<Vec<_>>().join(" "),
    };
    Setting { name: found.line.name.lossy().into_owned(), value, file, line, inherited_from: from }
}

/// The line of the last block's code that has answered.
fn answered_by(main: &[Directive], course: &Course, sources: &Sources) -> Option<NamedBlock> {
    let last = course.steps.last().filter(|_| course.arrived.is_none())?;
    line_that_answered(main, last, sources)
}

fn line_that_answered(main: &[Directive], step: &Passed, sources: &Sources) -> Option<NamedBlock> {
    let at = step.answer?;
    let blocks = chain(main, step.server, step.block);
    let (file, line) = place(at, sources);
    Some(NamedBlock { text: name_of_line(blocks.last()?.block(), at)?, file, line })
}

/// The name of the directive at a place in a block, or in an `if` of it.
fn name_of_line(lines: &[Directive], at: Pos) -> Option<String> {
    lines.iter().find_map(|line| match line.name.pos == at {
        true => Some(line.name.lossy().into_owned()),
        false => name_of_line(line.block(), at),
    })
}

fn answer(answer_bytes: &[u8]) -> Option<PredictedAnswer> {
    let text = String::from_utf8_lossy(answer_bytes);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let field = |line: &str| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("location").then(|| value.trim().to_owned())
    };
    let body = body.chars().take(BODY_SHOWN).collect();
    Some(PredictedAnswer { status, location: head.lines().find_map(field), body })
}
