//! The scripts of a configuration.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::{fmt, io};

use weir_conf::{Directive, DirectiveBody, Error, Word};
use weir_zone::ZoneRef;

use super::environment;
use crate::config::Setup;
use crate::config::scope::Scope;
use crate::site::Site;
use crate::site::main_conf::{BlockEnd, MainDraft, MainKey};
use crate::site::settings::LocationConf;
use weir_values::Template;

/// The index of a script in the site's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScriptId(pub u32);

/// The script of a phase.
#[derive(Debug, Clone)]
pub enum Script {
    /// A script of the list: an inline text, or a file whose name has no variables.
    Known(ScriptId),
    /// A file with variables in its name, or one that was missing at the start. It is read when a
    /// request needs it.
    Named(Template),
}

/// The source of a script.
#[derive(Debug)]
pub struct ScriptSource {
    /// The chunk name for error messages: `=` and a text, or `@` and a path.
    pub name: String,
    /// The text.
    pub text: Vec<u8>,
}

/// The scripts of `http` or of `stream`, with their common settings.
#[derive(Debug, Default)]
pub struct Scripts {
    list: Vec<ScriptSource>,
    /// `init_by_lua`
    pub init: Option<ScriptId>,
    /// `init_worker_by_lua`
    pub init_worker: Option<ScriptId>,
    /// `exit_worker_by_lua`
    pub exit_worker: Option<ScriptId>,
    /// `lua_package_path`
    pub package_path: Option<Vec<u8>>,
    /// `lua_package_cpath`
    pub package_cpath: Option<Vec<u8>>,
    /// `lua_shared_dict`
    pub dicts: Vec<ZoneRef>,
    /// `lua_max_pending_timers`
    pub pending_timers: Option<u64>,
    /// `lua_max_running_timers`
    pub running_timers: Option<u64>,
    /// `lua_regex_match_limit`, if it is set.
    pub match_limit: Option<u64>,
    /// `lua_capture_error_log`, in bytes.
    pub captured_log: Option<usize>,
    /// `lua_worker_thread_vm_pool_size`
    pub worker_vms: Option<u64>,
    /// Whether a location has `lua_max_run_time`.
    pub limited: bool,
    /// Whether a location has a script that is read when a request needs it.
    named: bool,
}

/// The scripts of `http`.
pub static SCRIPTS: MainKey<Scripts> = MainKey::new();

/// The scripts of `stream`, with the settings of its servers.
#[derive(Debug, Default)]
pub struct StreamScripts {
    /// The settings without a session. `None` if `stream` has no scripts.
    pub scripts: Scripts,
    /// What holds where there is no session; missing if no script stands in `stream`.
    pub main: Option<LocationConf>,
    /// The settings of each `server` block.
    pub servers: Vec<LocationConf>,
    /// `balancer_by_lua`, by the names of the upstream groups.
    pub balancers: Vec<(Vec<u8>, ScriptId)>,
}

/// The scripts of `stream`.
pub static SESSIONS: MainKey<StreamScripts> = MainKey::new();

impl MainDraft for StreamScripts {
    type MainConf = StreamScripts;

    fn finish(self, _: &mut BlockEnd<'_>) -> Result<StreamScripts, Error> {
        Ok(self)
    }
}

/// The part of the configuration whose scripts a VM runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Scripts of `http`.
    Requests,
    /// Scripts of `stream`.
    Sessions,
}

impl Side {
    /// The scripts.
    pub fn scripts(self, site: &Site) -> &Scripts {
        match self {
            Side::Requests => SCRIPTS.of(&site.main_confs),
            Side::Sessions => &SESSIONS.of(&site.main_confs).scripts,
        }
    }

    /// The settings without a request or session.
    pub fn main(self, site: &Site) -> &LocationConf {
        match (self, &SESSIONS.of(&site.main_confs).main) {
            (Side::Sessions, Some(main)) => main,
            _ => &site.main,
        }
    }
}

/// The scripts of the block that is being read, `http` or `stream`.
pub fn draft<'s>(setup: &'s mut Setup<'_>) -> &'s mut Scripts {
    match setup.reads_sessions {
        true => &mut SESSIONS.draft(&mut setup.drafts).scripts,
        false => SCRIPTS.draft(&mut setup.drafts),
    }
}

impl MainDraft for Scripts {
    type MainConf = Scripts;

    fn finish(self, _: &mut BlockEnd<'_>) -> Result<Scripts, Error> {
        environment::remember();
        Ok(self)
    }
}

impl Scripts {
    /// Whether there is no script, so that no VM is needed.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty() && !self.named
    }

    /// The number of scripts in the list.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// A script of the list.
    pub fn get(&self, id: ScriptId) -> Option<&ScriptSource> {
        self.list.get(id.0 as usize)
    }

    fn add(&mut self, source: ScriptSource) -> ScriptId {
        self.list.push(source);
        ScriptId(self.list.len() as u32 - 1)
    }
}

/// Directives whose scripts may not be empty, as in OpenResty.
const NEVER_EMPTY: &[&str] = &[
    "init_by_lua",
    "server_rewrite_by_lua",
    "rewrite_by_lua",
    "access_by_lua",
    "precontent_by_lua",
    "content_by_lua",
    "header_filter_by_lua",
    "body_filter_by_lua",
    "log_by_lua",
];

/// Reads a script directive of any form: `x_by_lua TEXT`, `x_by_lua_block { }`, `x_by_lua_file
/// PATH`. As in OpenResty, a syntax error or a missing file is only a warning. The requests that
/// need the script fail.
pub fn read(s: &mut Scope<'_, '_>, d: &Directive, word: usize) -> Result<Script, Error> {
    let name = d.name.lossy();
    let phase = name.strip_suffix("_block").or(name.strip_suffix("_file")).unwrap_or(&name);
    let must_not_be_empty = |text: &[u8]| match text {
        [] if NEVER_EMPTY.contains(&phase) => {
            Err(d.error("invalid location config: no runnable Lua code"))
        }
        _ => Ok(()),
    };
    if name.ends_with("_by_lua_file") {
        let Some(path) = d.arg(word) else { return Err(d.error("no file is named")) };
        must_not_be_empty(&path.bytes)?;
        return file(s, d, path);
    }
    let text = match (&d.body, d.arg(word)) {
        (DirectiveBody::Raw(text), _) => text.clone(),
        (_, Some(word)) => word.bytes.clone(),
        _ => return Err(d.error(format!("\"{name}\" has no script"))),
    };
    must_not_be_empty(&text)?;
    let source = ScriptSource { name: chunk_name(s, d, phase), text };
    if let Err(error) = source.check() {
        s.setup.warnings.push(d.warning(error.to_string()));
    }
    Ok(Script::Known(draft(s.setup).add(source)))
}

/// Reads a script whose file name cannot have variables, since there is no request.
pub fn read_known(s: &mut Scope<'_, '_>, d: &Directive, word: usize) -> Result<ScriptId, Error> {
    read(s, d, word)?.known(d)
}

impl Script {
    /// The script, unless the name of its file has variables. A missing file is read when it is
    /// needed.
    pub fn constant(self, d: &Directive) -> Result<Script, Error> {
        match &self {
            Script::Named(path) if path.constant().is_none() => {
                Err(d.error(format!("the path of \"{}\" must not hold variables", d.name.lossy())))
            }
            _ => Ok(self),
        }
    }

    /// The script's id. An error if it depends on a request.
    pub fn known(self, d: &Directive) -> Result<ScriptId, Error> {
        match self {
            Script::Known(id) => Ok(id),
            Script::Named(path) => Err(d.error(match path.constant() {
                Some(path) => {
                    let path = weir_log::Bytes(path);
                    format!("failed to load external Lua file \"{path}\"")
                }
                None => format!("the path of \"{}\" must not hold variables", d.name.lossy()),
            })),
        }
    }
}

fn file(s: &mut Scope<'_, '_>, d: &Directive, path: &Word) -> Result<Script, Error> {
    let template = s.setup.template_of(d, path, &path.bytes)?;
    let Some(constant) = template.constant() else {
        draft(s.setup).named = true;
        return Ok(Script::Named(template));
    };
    let full = s.setup.path(constant);
    let text = match weir_conf::read_file(&full) {
        Ok(text) => text,
        Err(error) => {
            let error = Unloadable::unread(&full, &error);
            s.setup.warnings.push(d.warning(error.to_string()).mark(path.pos));
            draft(s.setup).named = true;
            return Ok(Script::Named(template));
        }
    };
    let source = ScriptSource { name: format!("@{}", full.display()), text };
    if let Err(error) = source.check() {
        s.setup.warnings.push(d.warning(error.to_string()).mark(path.pos));
    }
    Ok(Script::Known(draft(s.setup).add(source)))
}

/// The length of a script's name that LuaJIT shows.
const NAME: usize = 56;

/// The chunk name of an inline script, such as `=content_by_lua(nginx.conf:12)`. A long path is
/// shortened at its beginning.
fn chunk_name(s: &Scope<'_, '_>, d: &Directive, phase: &str) -> String {
    if s.setup.reads_sessions && phase == "balancer_by_lua" {
        // As stream-lua-nginx-module names it.
        return format!("={phase}");
    }
    let source = s.setup.inputs.sources.get(d.name.pos.file);
    let path = source.map_or(Path::new("conf"), |source| &source.name);
    let shown = match path.file_name() {
        Some(name) if name == "nginx.conf" => Path::new(name),
        _ => path.strip_prefix(s.setup.inputs.conf_prefix).unwrap_or(path),
    };
    let (shown, line) = (shown.as_os_str().as_bytes(), d.end.line.to_string());
    let room = NAME.saturating_sub(phase.len() + line.len());
    let (dots, from) = match shown.len() > room {
        true => ("...", shown.len() + "...".len() - room),
        false => ("", 0),
    };
    let end = String::from_utf8_lossy(shown.get(from..).unwrap_or_default());
    format!("={phase}({dots}{end}:{line})")
}

impl ScriptSource {
    /// Compiles the script, to check its syntax.
    fn check(&self) -> Result<(), Unloadable> {
        if is_bytecode(&self.text) {
            // The checking VM does not load bytecode.
            return Ok(());
        }
        let lua = mlua::Lua::new_with(mlua::StdLib::NONE, mlua::LuaOptions::new());
        let compiled = lua.and_then(|lua| {
            let chunk = lua.load(without_shebang(&self.text)).set_name(&self.name);
            chunk.set_mode(mlua::ChunkMode::Text).into_function().map(drop)
        });
        compiled.map_err(|error| Unloadable::refused(&self.name, &error))
    }
}

/// Why a script cannot be loaded, in OpenResty's words.
#[derive(Debug)]
pub struct Unloadable {
    /// The script's file, if it has one.
    file: Option<String>,
    why: String,
}

impl Unloadable {
    /// The file cannot be read.
    pub fn unread(path: &Path, error: &io::Error) -> Unloadable {
        let path = path.display();
        let why = format!("cannot open {path} {}", weir_log::Cause(error));
        Unloadable { file: Some(path.to_string()), why }
    }

    /// The script of this name does not compile.
    pub fn refused(name: &str, error: &mlua::Error) -> Unloadable {
        let why = match error {
            mlua::Error::SyntaxError { message, .. } => message.clone(),
            error => error.to_string(),
        };
        Unloadable { file: name.strip_prefix('@').map(str::to_owned), why }
    }

    /// The error without the words about the file.
    pub fn why(&self) -> &str {
        &self.why
    }
}

impl fmt::Display for Unloadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "failed to load external Lua file \"{file}\": {}", self.why),
            None => write!(f, "failed to load inlined Lua code: {}", self.why),
        }
    }
}

/// Whether a text is compiled bytecode, as of `luajit -b`.
pub fn is_bytecode(text: &[u8]) -> bool {
    text.starts_with(b"\x1b")
}

/// The text without a leading `#!` line.
pub fn without_shebang(text: &[u8]) -> &[u8] {
    match text.first() {
        Some(b'#') => memchr::memchr(b'\n', text).map_or(b"", |at| &text[at..]),
        _ => text,
    }
}
