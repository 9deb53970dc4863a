//! A loop's Lua machine: its libraries, and the compiled scripts.

#![expect(clippy::disallowed_methods, reason = "scripts are the configuration's")]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use mlua::{Lua, Table, Thread, ThreadStatus};
use weir_log::Level;

use super::anchors::{Anchor, Anchors};
use super::current::{self, Phase};
use super::run;
use super::script::{Script, ScriptId, without_shebang};
use super::{api, socket, timers};
use crate::config::site::Site;
use crate::event_loop::LoopState;
use crate::files;
use crate::request::Request;

/// Files with variables in their names that are kept compiled.
const FILES: usize = 1024;

/// Coroutines that are kept for the next scripts.
const COROUTINES: usize = 64;

/// A compiled script: a function that is kept.
pub type Code = Rc<Anchor>;

/// A loop's machine.
pub struct Vm {
    /// Lua itself.
    pub lua: Lua,
    site: &'static Site,
    /// What outlives a step of a script.
    pub anchors: Rc<Anchors>,
    scripts: RefCell<Vec<Option<Code>>>,
    files: RefCell<HashMap<PathBuf, Code>>,
    /// Coroutines whose script has ended: to make one and to throw it away is much of what a short script costs.
    ended: RefCell<Vec<Thread>>,
    /// `init_by_lua` failed: no script can rely on what it did not do.
    broken: Cell<bool>,
    /// Connections that scripts have left for others.
    pub pools: socket::Pools,
    /// What waits for its time.
    pub timers: timers::Timers,
}

/// Makes a loop's machine and runs what belongs to its start; nothing where the site has no scripts.
pub fn start(event_loop: &Rc<LoopState>) -> Option<Rc<Vm>> {
    let site = event_loop.site;
    if site.lua.is_empty() {
        return None;
    }
    let lua = weir_sys::lua::machine();
    let anchors = match Anchors::new(&lua) {
        Ok(anchors) => anchors,
        Err(error) => {
            let text = format_args!("failed to init Lua VM: {error}");
            site.main.core.error_log.write(Level::Emerg, None, text);
            return None;
        }
    };
    let vm = Rc::new(Vm {
        anchors,
        scripts: RefCell::new(vec![None; site.lua.len()]),
        files: RefCell::default(),
        ended: RefCell::default(),
        broken: Cell::new(false),
        pools: socket::Pools::default(),
        timers: timers::Timers::new(&site.lua),
        lua,
        site,
    });
    if let Err(error) = vm.furnish(event_loop) {
        vm.log(Level::Emerg, format_args!("failed to init Lua VM: {error}"));
        vm.broken.set(true);
    }
    vm.at_start(Phase::Init, site.lua.init);
    Some(vm)
}

impl Vm {
    /// `init_worker_by_lua`: when the loop knows its machine.
    pub fn started(&self) {
        self.at_start(Phase::InitWorker, self.site.lua.init_worker);
    }

    /// `exit_worker_by_lua`
    pub fn ending(&self) {
        self.at_start(Phase::ExitWorker, self.site.lua.exit_worker);
    }

    /// Writes to the error log of the whole site.
    pub fn log(&self, level: Level, text: std::fmt::Arguments<'_>) {
        self.site.main.core.error_log.write(level, None, text);
    }

    /// A coroutine for a script: its first arguments are the number of the script's function and what that is called with.
    pub fn coroutine(&self) -> mlua::Result<Thread> {
        let call = self.anchors.call();
        match self.ended.borrow_mut().pop() {
            Some(thread) => thread.reset(call).map(|()| thread),
            None => self.lua.create_thread(call),
        }
    }

    /// Keeps the coroutine of a script that has come to its end.
    pub fn keep(&self, thread: Thread) {
        let mut ended = self.ended.borrow_mut();
        if ended.len() < COROUTINES && thread.status() == ThreadStatus::Finished {
            ended.push(thread);
        }
    }

    fn at_start(&self, phase: Phase, script: Option<ScriptId>) {
        let Some(script) = script else { return };
        let done = self.known(script).and_then(|code| {
            let call = self.anchors.call();
            let done = current::enter(None, phase, || call.call::<()>(code.number()));
            done.map_err(|error| run::text_of(&error))
        });
        if let Err(text) = done {
            let name = phase.directive().trim_end_matches('*');
            let text = format_args!("{name} error: {text}");
            self.log(Level::Emerg, text);
            if phase == Phase::Init {
                self.broken.set(true);
            }
        }
    }

    fn furnish(&self, event_loop: &Rc<LoopState>) -> mlua::Result<()> {
        let package: Table = self.lua.globals().get("package")?;
        for (key, path) in
            [("path", &self.site.lua.package_path), ("cpath", &self.site.lua.package_cpath)]
        {
            let Some(path) = path else { continue };
            let default = package.get::<mlua::String>(key)?;
            let path = with_defaults(path, &default.as_bytes());
            package.set(key, self.lua.create_string(path)?)?;
        }
        api::install(&self.lua, &self.anchors, event_loop)
    }

    /// The function of a script of the configuration; the error is what the log is told.
    fn known(&self, id: ScriptId) -> Result<Code, String> {
        if self.broken.get() {
            return Err("init_by_lua failed before".to_owned());
        }
        let at = id.0 as usize;
        if let Some(Some(code)) = self.scripts.borrow().get(at) {
            return Ok(code.clone());
        }
        let source = self.site.lua.get(id).ok_or("there is no such script")?;
        let code = self.compile(&source.name, &source.text)?;
        if let Some(place) = self.scripts.borrow_mut().get_mut(at) {
            *place = Some(code.clone());
        }
        Ok(code)
    }

    fn compile(&self, name: &str, text: &[u8]) -> Result<Code, String> {
        let chunk = self.lua.load(without_shebang(text)).set_name(name);
        let function = chunk.set_mode(mlua::ChunkMode::Text).into_function();
        let code = function.and_then(|function| self.anchors.keep(function));
        code.map(Rc::new).map_err(|error| run::text_of(&error))
    }

    /// The script of a phase, where it can be had without waiting.
    pub fn code(&self, r: &mut Request, script: &Script) -> Result<Code, String> {
        match script {
            Script::Known(id) => self.known(*id),
            Script::Named(template) => {
                let path = path_of(&template.eval(r));
                let known = self.files.borrow().get(&path).cloned();
                known.ok_or_else(|| format!("\"{}\" is not loaded", path.display()))
            }
        }
    }

    /// The same, reading the file if need be.
    pub async fn load(&self, r: &mut Request, script: &Script) -> Result<Code, Unloaded> {
        let Script::Named(template) = script else {
            return self.code(r, script).map_err(Unloaded::Broken);
        };
        let name = template.eval(r).into_owned();
        let path = path_of(&name);
        if files::climbs(r, &name, template) {
            return Err(Unloaded::Missing(format!(
                "{} is outside of its directory",
                path.display()
            )));
        }
        if let Some(known) = self.files.borrow().get(&path) {
            return Ok(known.clone());
        }
        let text = Box::pin(read(r, &path)).await.map_err(|error| {
            Unloaded::Missing(format!("cannot open {}: {error}", path.display()))
        })?;
        let name = format!("@{}", path.display());
        let code = self.compile(&name, &text).map_err(Unloaded::Broken)?;
        let mut files = self.files.borrow_mut();
        if files.len() >= FILES {
            files.clear();
        }
        files.insert(path, code.clone());
        Ok(code)
    }
}

/// Why there is nothing to run.
pub enum Unloaded {
    /// No such file.
    Missing(String),
    /// It is no Lua.
    Broken(String),
}

async fn read(r: &Request, path: &Path) -> std::io::Result<Vec<u8>> {
    let handle = r.event_loop.handle.clone();
    let (file, _) = handle.files().open(path, &weir_engine::OpenHow::read()).await?;
    let mut text = Vec::new();
    loop {
        let at = text.len() as u64;
        text.reserve(16 * 1024);
        let (read, back) = handle.files().read_at(&file, text, at).await;
        text = back;
        if read? == 0 {
            return Ok(text);
        }
    }
}

fn path_of(name: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    PathBuf::from(std::ffi::OsStr::from_bytes(name))
}

/// `;;` stands for the machine's own path.
fn with_defaults(path: &[u8], default: &[u8]) -> Vec<u8> {
    let Some(at) = path.windows(2).position(|pair| pair == b";;") else { return path.to_vec() };
    let (before, after) = (&path[..at], &path[at + 2..]);
    let parts = [before, default, after];
    let parts: Vec<&[u8]> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(&b';')
}

#[cfg(test)]
mod tests {
    use super::with_defaults;

    #[test]
    fn two_semicolons_stand_for_the_default_path() {
        assert_eq!(with_defaults(b"/a/?.lua;;", b"./?.lua"), b"/a/?.lua;./?.lua");
        assert_eq!(with_defaults(b";;/a/?.lua", b"./?.lua"), b"./?.lua;/a/?.lua");
        assert_eq!(with_defaults(b"/a/?.lua", b"./?.lua"), b"/a/?.lua");
    }
}
