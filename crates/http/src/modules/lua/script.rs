//! The scripts of a configuration: their texts, and where a phase finds its own.

use std::path::PathBuf;

use weir_conf::{Directive, DirectiveBody, Error, Word};
use weir_zone::ZoneRef;

use crate::config::scope::Scope;
use crate::site::main_conf::{BlockEnd, MainDraft, MainKey};
use weir_values::Template;

/// A script's place in the site's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScriptId(pub u32);

/// What runs in a phase.
#[derive(Debug, Clone)]
pub enum Script {
    /// A text of the configuration, or a file with the same name for every request.
    Known(ScriptId),
    /// A file with variables in its name: read when a request first needs it.
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
    /// `lua_worker_thread_vm_pool_size`
    pub worker_vms: Option<u64>,
    /// Some location has a `lua_max_run_time`.
    pub limited: bool,
    /// Some location has a script with variables in its name.
    named: bool,
}

/// The site's scripts.
pub static SCRIPTS: MainKey<Scripts> = MainKey::new();

impl MainDraft for Scripts {
    type MainConf = Scripts;

    fn finish(self, _: &mut BlockEnd<'_>) -> Result<Scripts, Error> {
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

/// Reads a directive of any form: `x_by_lua TEXT`, `x_by_lua_block { }`, `x_by_lua_file PATH`.
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
    let source = ScriptSource { name: format!("={phase}({})", place(s, d)), text };
    check(&source).map_err(|text| d.error(format!("failed to load inlined Lua code: {text}")))?;
    Ok(Script::Known(SCRIPTS.draft(&mut s.setup.drafts).add(source)))
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
            Script::Named(_) => {
                let name = d.name.lossy();
                Err(d.error(format!("the path of \"{name}\" must not hold variables")))
            }
        }
    }
}

fn file(s: &mut Scope<'_, '_>, d: &Directive, path: &Word) -> Result<Script, Error> {
    let full = s.setup.full_name(&path.bytes);
    let template = s.setup.template_of(d, path, &full)?;
    let Some(constant) = template.constant() else {
        SCRIPTS.draft(&mut s.setup.drafts).named = true;
        return Ok(Script::Named(template));
    };
    let shown = String::from_utf8_lossy(constant).into_owned();
    let text = weir_conf::read_file(&PathBuf::from(&shown)).map_err(|error| {
        let cause = weir_log::Cause(&error);
        d.error_at(path, format!("failed to load external Lua file \"{shown}\": {cause}"))
    })?;
    let source = ScriptSource { name: format!("@{shown}"), text };
    check(&source).map_err(|text| {
        d.error_at(path, format!("failed to load external Lua file \"{shown}\": {text}"))
    })?;
    Ok(Script::Known(SCRIPTS.draft(&mut s.setup.drafts).add(source)))
}

/// `nginx.conf:12`, as errors of an inlined script name it.
fn place(s: &Scope<'_, '_>, d: &Directive) -> String {
    let source = s.setup.inputs.sources.get(d.name.pos.file);
    let file = source.and_then(|source| source.name.file_name());
    let file = file.map_or_else(|| "conf".into(), |name| name.to_string_lossy().into_owned());
    format!("{file}:{}", d.end.line)
}

/// Whether it is Lua at all; the error is the compiler's.
fn check(source: &ScriptSource) -> Result<(), String> {
    if is_bytecode(&source.text) {
        // Only a machine without restrictions takes it.
        return Ok(());
    }
    let lua = mlua::Lua::new_with(mlua::StdLib::NONE, mlua::LuaOptions::new());
    let compiled = lua.and_then(|lua| {
        let chunk = lua.load(without_shebang(&source.text)).set_name(&source.name);
        chunk.set_mode(mlua::ChunkMode::Text).into_function().map(drop)
    });
    compiled.map_err(|error| match error {
        mlua::Error::SyntaxError { message, .. } => message,
        error => error.to_string(),
    })
}

/// Whether `luajit -b` has made it.
pub fn is_bytecode(text: &[u8]) -> bool {
    text.starts_with(b"\x1bLJ")
}

/// A file may begin with `#!/usr/bin/...`.
pub fn without_shebang(text: &[u8]) -> &[u8] {
    match text.first() {
        Some(b'#') => memchr::memchr(b'\n', text).map_or(b"", |at| &text[at..]),
        _ => text,
    }
}
