//! Runs the commands of a page.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use bytes::Bytes;
use weir_engine::Chain;
use weir_log::Level;
use weir_proto::uri::{self, Escape};

use super::parser::{Command, Event, Parser};
use super::{Conf, SsiShared, complain, full, text};
use crate::request::Request;
use crate::request::family::Stub;

/// The most parameters of a command.
const PARAMS: usize = 16;
/// The bytes of echoed variables after which the output is sent ahead. A page may echo a long value
/// often.
const MOST_ECHOED: usize = 1 << 20;

/// Why a command failed.
pub enum Fault {
    /// The command is invalid. The page shows the error message.
    Command,
    /// The response cannot continue.
    Io(io::Error),
}

/// A page in progress.
pub struct SsiPage {
    conf: &'static Conf,
    shared: Rc<RefCell<SsiShared>>,
    parser: Parser,
    /// Whether text is output. If not, it is skipped or stored in a block.
    output: bool,
    in_block: bool,
    /// Whether the rest of the block is dropped, since there is no room for it.
    block_is_full: bool,
    /// The current branch of an `if`.
    part: Branch,
    /// Whether a branch of the `if` was taken.
    taken: bool,
    encoding: Encoding,
    error_message: Bytes,
    /// The length of echoed variables since output was last sent ahead.
    echoed: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Branch {
    Outside,
    If,
    Else,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    None,
    Url,
    Entity,
}

/// A known command.
struct CommandSpec {
    name: &'static str,
    /// The parameters, and whether each is required.
    params: &'static [(&'static str, bool)],
    /// The last branch of an `if` that the command may follow.
    after: Option<Branch>,
}

const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "include",
        params: &[
            ("virtual", false),
            ("file", false),
            ("wait", false),
            ("set", false),
            ("stub", false),
        ],
        after: None,
    },
    CommandSpec {
        name: "echo",
        params: &[("var", true), ("default", false), ("encoding", false)],
        after: None,
    },
    CommandSpec { name: "config", params: &[("errmsg", false), ("timefmt", false)], after: None },
    CommandSpec { name: "set", params: &[("var", true), ("value", true)], after: None },
    CommandSpec { name: "if", params: &[("expr", true)], after: None },
    CommandSpec { name: "elif", params: &[("expr", true)], after: Some(Branch::If) },
    CommandSpec { name: "else", params: &[], after: Some(Branch::If) },
    CommandSpec { name: "endif", params: &[], after: Some(Branch::Else) },
    CommandSpec { name: "block", params: &[("name", true)], after: None },
    CommandSpec { name: "endblock", params: &[], after: None },
];

/// A command's parameters by name.
struct CommandParams<'c>(&'c Command);

impl<'c> CommandParams<'c> {
    fn get(&self, name: &str) -> Option<&'c [u8]> {
        let found = self.0.params.iter().find(|(n, _)| n == name.as_bytes());
        found.map(|(_, value)| value.as_slice())
    }

    fn required(&self, name: &str) -> &'c [u8] {
        self.get(name).unwrap_or_default()
    }
}

impl SsiPage {
    /// The state at the beginning of a page.
    pub fn new(conf: &'static Conf, shared: Rc<RefCell<SsiShared>>) -> SsiPage {
        SsiPage {
            conf,
            shared,
            parser: Parser::new(conf.value_length as usize),
            output: true,
            in_block: false,
            block_is_full: false,
            part: Branch::Outside,
            taken: false,
            encoding: Encoding::Entity,
            error_message: Bytes::from_static(
                b"[an error occurred while processing the directive]",
            ),
            echoed: 0,
        }
    }

    /// Processes the next piece of the page. Appends the output to `out`.
    pub async fn read(
        &mut self,
        r: &mut Request,
        mut input: Bytes,
        out: &mut Chain,
    ) -> io::Result<()> {
        while let Some(event) = self.parser.next(&mut input) {
            let done = match event {
                Event::Text(bytes) => self.text(r, bytes, out),
                Event::Complaint(text) => {
                    complain(r, Level::Error, format_args!("{text}"));
                    Ok(())
                }
                Event::Broken => Err(Fault::Command),
                Event::Command(command) => self.command(r, &command, out).await,
            };
            match done {
                Ok(()) => {}
                Err(Fault::Io(error)) => return Err(error),
                Err(Fault::Command) if self.conf.silent_errors => {}
                Err(Fault::Command) => out.push(self.error_message.clone()),
            }
            if self.echoed >= MOST_ECHOED {
                self.echoed = 0;
                r.send_ahead(std::mem::take(out)).await?;
                r.send_queued().await?;
            }
        }
        Ok(())
    }

    /// Ends the page.
    pub fn end(&mut self, r: &Request, out: &mut Chain) {
        if let Some(Event::Text(bytes)) = self.parser.end() {
            // Without room in the block, the text is dropped.
            let _ = self.text(r, bytes, out);
        }
    }

    fn text(&mut self, r: &Request, bytes: Bytes, out: &mut Chain) -> Result<(), Fault> {
        if self.output {
            out.push(bytes);
        } else if self.in_block && !self.block_is_full {
            let mut shared = self.shared.borrow_mut();
            self.block_is_full = !shared.extend_block(&bytes);
            if self.block_is_full {
                let name = shared.blocks.last().map_or(b"".as_slice(), |block| &block.name);
                return Err(full(r, "block", name));
            }
        }
        Ok(())
    }

    async fn command(
        &mut self,
        r: &mut Request,
        command: &Command,
        out: &mut Chain,
    ) -> Result<(), Fault> {
        let name = weir_log::Bytes(&command.name);
        let Some(known) = COMMANDS.iter().find(|known| known.name.as_bytes() == command.name)
        else {
            if !self.output {
                return Ok(());
            }
            complain(r, Level::Error, format_args!("invalid SSI command: \"{name}\""));
            return Err(Fault::Command);
        };
        if !self.output && known.name != "endblock" {
            if self.in_block {
                let mut written = Vec::new();
                command.write(&mut written);
                return self.text(r, written.into(), out);
            }
            if known.after.is_none() {
                return Ok(());
            }
        }
        if let Some(after) = known.after
            && (self.part == Branch::Outside || self.part > after)
        {
            complain(r, Level::Error, format_args!("invalid context of SSI command: \"{name}\""));
            return Err(Fault::Command);
        }
        check_params(r, known, command)?;
        self.perform(r, known.name, &CommandParams(command), out).await
    }

    async fn perform(
        &mut self,
        r: &mut Request,
        name: &str,
        params: &CommandParams<'_>,
        out: &mut Chain,
    ) -> Result<(), Fault> {
        match name {
            "include" => return self.include(r, params, out).await,
            "echo" => self.echo(r, params, out),
            "config" => self.config(r, params),
            "set" => {
                let value = text::evaluate(r, params.required("value"), false)?;
                super::set(r, params.required("var"), value)?;
            }
            "if" | "elif" => return self.branch(r, name == "if", params.required("expr")),
            "else" => {
                self.output = !self.taken;
                self.part = Branch::Else;
            }
            "endif" => (self.output, self.taken, self.part) = (true, false, Branch::Outside),
            "block" => {
                let name = params.required("name");
                if !self.shared.borrow_mut().begin_block(name) {
                    return Err(full(r, "block", name));
                }
                (self.output, self.in_block, self.block_is_full) = (false, true, false);
            }
            _ => (self.output, self.in_block) = (true, false),
        }
        Ok(())
    }

    fn branch(&mut self, r: &mut Request, first: bool, expression: &[u8]) -> Result<(), Fault> {
        if first && self.part != Branch::Outside {
            complain(r, Level::Error, format_args!("the \"if\" command inside the \"if\" command"));
            return Err(Fault::Command);
        }
        if self.taken {
            self.output = false;
            return Ok(());
        }
        self.output = text::holds(r, expression)?;
        self.taken = self.output;
        self.part = Branch::If;
        Ok(())
    }

    fn config(&mut self, r: &mut Request, params: &CommandParams<'_>) {
        if let Some(format) = params.get("timefmt") {
            super::CONTEXT.or_insert_with(&mut r.contexts, super::Context::default).time_format =
                Some(format.to_vec());
        }
        if let Some(message) = params.get("errmsg") {
            self.error_message = Bytes::copy_from_slice(message);
        }
    }

    fn echo(&mut self, r: &mut Request, params: &CommandParams<'_>, out: &mut Chain) {
        let mut value = Vec::new();
        if !text::append_variable(r, params.required("var"), &mut value) {
            value = params.get("default").unwrap_or(b"(none)").to_vec();
        }
        if value.is_empty() {
            return;
        }
        match params.get("encoding") {
            None => {}
            Some(b"none") => self.encoding = Encoding::None,
            Some(b"url") => self.encoding = Encoding::Url,
            Some(b"entity") => self.encoding = Encoding::Entity,
            Some(other) => {
                let other = weir_log::Bytes(other);
                let text = format_args!("unknown encoding \"{other}\" in the \"echo\" command");
                complain(r, Level::Error, text);
            }
        }
        let mut encoded = Vec::new();
        match self.encoding {
            Encoding::None => encoded = value,
            Encoding::Url => uri::escape(Escape::Html, &value, &mut encoded),
            Encoding::Entity => uri::escape_html(&value, &mut encoded),
        }
        self.echoed += encoded.len();
        out.push(Bytes::from(encoded));
    }

    async fn include(
        &mut self,
        r: &mut Request,
        params: &CommandParams<'_>,
        out: &mut Chain,
    ) -> Result<(), Fault> {
        let include = Include::read(r, params)?;
        let target = text::evaluate(r, include.target, true)?;
        let Ok(uri) = uri::is_unsafe(&target) else {
            let target = weir_log::Bytes(&target);
            complain(r, Level::Error, format_args!("unsafe URI \"{target}\" was detected"));
            return Err(Fault::Command);
        };
        let args = uri.args.unwrap_or_default();
        let stub = match include.stub {
            Some(name) => Some(self.stub(r, name)?),
            None => None,
        };
        r.send_ahead(std::mem::take(out)).await.map_err(Fault::Io)?;
        if let Some(variable) = include.set {
            if self.shared.borrow().get(variable).is_none() {
                super::set(r, variable, Vec::new())?;
            }
            r.send_unbuffered().await.map_err(Fault::Io)?;
            let fetched = r.fetch(&uri.path, &args).await.ok_or(Fault::Command)?;
            let answer = fetched.map_err(Fault::Io)?;
            if answer.status < 300 {
                super::set(r, variable, answer.body)?;
            }
            return Ok(());
        }
        let sub = r.include(&uri.path, &args, stub).ok_or(Fault::Command)?;
        r.send_subrequest(sub);
        if include.wait {
            r.send_queued().await.map_err(Fault::Io)?;
        }
        Ok(())
    }

    fn stub(&self, r: &Request, name: &[u8]) -> Result<Stub, Fault> {
        let mut shared = self.shared.borrow_mut();
        let Some(block) = shared.blocks.iter_mut().find(|block| block.name == name) else {
            let name = weir_log::Bytes(name);
            let text = format_args!("\"stub\"=\"{name}\" for \"include\" not found");
            complain(r, Level::Error, text);
            return Err(Fault::Command);
        };
        Ok(Stub { body: block.shared(), content_type: r.response.content_type.clone() })
    }
}

/// The parameters of an `include`.
struct Include<'c> {
    target: &'c [u8],
    wait: bool,
    set: Option<&'c [u8]>,
    stub: Option<&'c [u8]>,
}

impl<'c> Include<'c> {
    fn read(r: &Request, params: &CommandParams<'c>) -> Result<Include<'c>, Fault> {
        let fail = |text: String| {
            complain(r, Level::Error, format_args!("{text}"));
            Err(Fault::Command)
        };
        let lossy = |text| weir_log::Bytes(text).to_string();
        let (set, stub) = (params.get("set"), params.get("stub"));
        let target = match (params.get("virtual"), params.get("file")) {
            (Some(uri), Some(file)) => {
                let (uri, file) = (lossy(uri), lossy(file));
                return fail(format!(
                    "inclusion may be either virtual=\"{uri}\" or file=\"{file}\""
                ));
            }
            (None, None) => {
                return fail("no parameter in \"include\" SSI command".to_owned());
            }
            (Some(target), None) | (None, Some(target)) => target,
        };
        if set.is_some() && stub.is_some() {
            return fail(
                "\"set\" and \"stub\" cannot be used together in \"include\" SSI command"
                    .to_owned(),
            );
        }
        let file = params.get("file").is_some();
        let wait = match params.get("wait") {
            None => file,
            Some(_) if file => {
                let file = lossy(target);
                return fail(format!("\"wait\" cannot be used with file=\"{file}\""));
            }
            Some(word) if word.eq_ignore_ascii_case(b"no") => false,
            Some(word) if word.eq_ignore_ascii_case(b"yes") => true,
            Some(word) => {
                let word = lossy(word);
                return fail(format!("invalid value \"{word}\" in the \"wait\" parameter"));
            }
        };
        Ok(Include { target, wait, set, stub })
    }
}

fn check_params(r: &Request, known: &CommandSpec, command: &Command) -> Result<(), Fault> {
    let name = known.name;
    let fail = |text: String| {
        complain(r, Level::Error, format_args!("{text}"));
        Err(Fault::Command)
    };
    if command.params.len() > PARAMS {
        return fail(format!("too many SSI command parameters: \"{name}\""));
    }
    for (i, (param, _)) in command.params.iter().enumerate() {
        let shown = weir_log::Bytes(param);
        if !known.params.iter().any(|(n, _)| n.as_bytes() == param.as_slice()) {
            return fail(format!("invalid parameter name: \"{shown}\" in \"{name}\" SSI command"));
        }
        if command.params.iter().take(i).any(|(earlier, _)| earlier == param) {
            return fail(format!("duplicate \"{shown}\" parameter in \"{name}\" SSI command"));
        }
    }
    let given = CommandParams(command);
    match known.params.iter().find(|(n, mandatory)| *mandatory && given.get(n).is_none()) {
        None => Ok(()),
        Some((param, _)) => {
            fail(format!("mandatory \"{param}\" parameter is absent in \"{name}\" SSI command"))
        }
    }
}
