//! The scripts of a configuration: their texts, and where a phase finds its own.

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

/// A script's place in the site's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScriptId(pub u32);

/// What runs in a phase.
#[derive(Debug, Clone)]
pub enum Script {
    /// A text of the configuration, or a file with the same name for every request.
    Known(ScriptId),
    /// A file with variables in its name, or that was not there at the start: read when a request first needs it.
    Named(Template),
}

/// The text of a script as it was read.
#[derive(Debug)]
pub struct ScriptSource {
    /// What errors in it name: `=` and a text, or `@` and a path.
    pub name: String,
    /// The text.
    pub text: Vec<u8>,
}

/// All that the site's scripts share.
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
    /// `lua_regex_match_limit`; nothing where that is not said.
    pub match_limit: Option<u64>,
    /// `lua_capture_error_log`, in bytes.
    pub captured_log: Option<usize>,
    /// `lua_worker_thread_vm_pool_size`
    pub worker_vms: Option<u64>,
    /// Some location has a `lua_max_run_time`.
    pub limited: bool,
    /// Some location has a script that is read when a request needs it.
    named: bool,
}

/// The site's scripts.
pub static SCRIPTS: MainKey<Scripts> = MainKey::new();

/// Scripts of sessions, and the settings of their servers.
#[derive(Debug, Default)]
pub struct OfSessions {
    /// The scripts.
    pub scripts: Scripts,
    /// What holds where there is no session; missing if no script stands in `stream`.
    pub main: Option<LocationConf>,
    /// For each `server` block.
    pub servers: Vec<LocationConf>,
    /// `balancer_by_lua`, by the names of the groups.
    pub balancers: Vec<(Vec<u8>, ScriptId)>,
}

/// Those of the `stream` block.
pub static SESSIONS: MainKey<OfSessions> = MainKey::new();

impl MainDraft for OfSessions {
    type MainConf = OfSessions;

    fn finish(self, _: &mut BlockEnd<'_>) -> Result<OfSessions, Error> {
        Ok(self)
    }
}

/// Whose scripts a VM has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Those of `http`.
    Requests,
    /// Those of `stream`.
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

    /// What holds where there is neither a request nor a session.
    pub fn main(self, site: &Site) -> &LocationConf {
        match (self, &SESSIONS.of(&site.main_confs).main) {
            (Side::Sessions, Some(main)) => main,
            _ => &site.main,
        }
    }
}

/// The scripts of the block that is being read.
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
    /// Without scripts no loop needs a machine.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty() && !self.named
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// One of them.
    pub fn get(&self, id: ScriptId) -> Option<&ScriptSource> {
        self.list.get(id.0 as usize)
    }

    fn add(&mut self, source: ScriptSource) -> ScriptId {
        self.list.push(source);
        ScriptId(self.list.len() as u32 - 1)
    }
}

/// Reads a directive of any form: `x_by_lua TEXT`, `x_by_lua_block { }`, `x_by_lua_file PATH`. What is no Lua, and a file that
/// is not there, costs the requests that need it, as in OpenResty: the start goes on with a warning.
pub fn read(s: &mut Scope<'_, '_>, d: &Directive, word: usize) -> Result<Script, Error> {
    let name = d.name.lossy();
    if name.ends_with("_by_lua_file") {
        let Some(path) = d.arg(word) else { return Err(d.error("no file is named")) };
        return file(s, d, path);
    }
    let text = match (&d.body, d.arg(word)) {
        (DirectiveBody::Raw(text), _) => text.clone(),
        (_, Some(word)) => word.bytes.clone(),
        _ => return Err(d.error(format!("\"{name}\" has no script"))),
    };
    let phase = name.strip_suffix("_block").unwrap_or(&name);
    let source = ScriptSource { name: chunk_name(s, d, phase), text };
    if let Err(error) = source.check() {
        s.setup.warnings.push(d.warning(error.to_string()));
    }
    Ok(Script::Known(draft(s.setup).add(source)))
}

/// The same where a request is not there to give variables their values.
pub fn read_known(s: &mut Scope<'_, '_>, d: &Directive, word: usize) -> Result<ScriptId, Error> {
    read(s, d, word)?.known(d)
}

impl Script {
    /// The one that does not depend on a request.
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

/// LuaJIT shows so much of a script's name.
const NAME: usize = 56;

/// `=content_by_lua(nginx.conf:12)`, as errors of an inlined script name it. Of a long path the end counts.
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
    /// Whether it is Lua at all.
    fn check(&self) -> Result<(), Unloadable> {
        if is_bytecode(&self.text) {
            // Only a machine without restrictions takes it.
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

/// Why a script cannot be loaded; shown in OpenResty's words.
#[derive(Debug)]
pub struct Unloadable {
    /// The script's file, if it has one.
    file: Option<String>,
    why: String,
}

impl Unloadable {
    /// Its file cannot be read.
    pub fn unread(path: &Path, error: &io::Error) -> Unloadable {
        let path = path.display();
        let why = format!("cannot open {path} {}", weir_log::Cause(error));
        Unloadable { file: Some(path.to_string()), why }
    }

    /// Lua does not take the script of this name.
    pub fn refused(name: &str, error: &mlua::Error) -> Unloadable {
        let why = match error {
            mlua::Error::SyntaxError { message, .. } => message.clone(),
            error => error.to_string(),
        };
        Unloadable { file: name.strip_prefix('@').map(str::to_owned), why }
    }

    /// The error alone.
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

/// Whether a compiler has made it, such as `luajit -b`.
pub fn is_bytecode(text: &[u8]) -> bool {
    text.starts_with(b"\x1b")
}

/// A file may begin with `#!/usr/bin/...`.
pub fn without_shebang(text: &[u8]) -> &[u8] {
    match text.first() {
        Some(b'#') => memchr::memchr(b'\n', text).map_or(b"", |at| &text[at..]),
        _ => text,
    }
}
