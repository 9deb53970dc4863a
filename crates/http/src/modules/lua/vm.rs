//! A loop's Lua VM: its libraries, and the compiled scripts.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::{fmt, io};

use mlua::{Lua, Thread, ThreadStatus};
use weir_log::Level;
use weir_tls::KeyCache;

use super::anchors::{Anchor, Anchors};
use super::current::{self, Phase, Subject};
use super::script::{Script, ScriptId, Scripts, Side, Unloadable, is_bytecode, without_shebang};
use super::yield_request::text_of;
use super::{limit, pipe, socket, timers};
use crate::event_loop::{LoopKey, LoopState};
use crate::files;
use crate::request::Request;
use crate::site::Site;
use weir_values::Template;
use weir_values::doing::{self, ActivityName};

/// The most compiled files with variables in their names that are kept.
const FILES: usize = 1024;

/// The most ended coroutines that are kept for reuse.
const COROUTINES: usize = 64;

/// A compiled script.
pub type Code = Rc<Compiled>;

/// A compiled script.
pub struct Compiled {
    /// Its function.
    pub function: Anchor,
    /// The name of the script in error messages.
    pub name: ActivityName,
}

/// A loop's VM.
pub struct Vm {
    /// Lua itself.
    pub lua: Lua,
    /// The site of the scripts.
    pub site: &'static Site,
    /// The side of the site whose scripts the VM runs.
    pub side: Side,
    /// The scripts of that side.
    pub known: &'static Scripts,
    /// Values that outlive a step of a script.
    pub anchors: Rc<Anchors>,
    scripts: RefCell<Vec<Option<Code>>>,
    files: RefCell<HashMap<PathBuf, Code>>,
    /// Ended coroutines, for reuse: creating and collecting one is a large part of a short script's
    /// cost.
    ended: RefCell<Vec<Thread>>,
    /// The same for scripts that may not yield.
    ended_unyielding: RefCell<Vec<Thread>>,
    /// Whether `init_by_lua` failed. Scripts fail then, since they rely on it.
    pub broken: Cell<bool>,
    /// Kept-alive connections.
    pub pools: Rc<socket::Pools>,
    /// The timers.
    pub timers: timers::Timers,
    /// Processes of scripts.
    pub processes: pipe::Running,
    /// Private keys that scripts of handshakes have parsed.
    pub keys: RefCell<KeyCache>,
    /// The indices of listening sockets from which this loop must not accept.
    pub declined: RefCell<Vec<usize>>,
}

/// The VMs of a loop, as far as the site has scripts.
pub struct LoopVm {
    /// For requests.
    pub requests: OnceCell<Rc<Vm>>,
    /// For sessions.
    pub sessions: OnceCell<Rc<Vm>>,
}

impl LoopVm {
    /// The VMs that exist.
    pub fn each(&self) -> impl Iterator<Item = &Rc<Vm>> {
        self.requests.get().into_iter().chain(self.sessions.get())
    }
}

impl Drop for LoopVm {
    /// Runs the finalizers of remaining values, which may use dictionaries.
    fn drop(&mut self) {
        for vm in [self.requests.take(), self.sessions.take()].into_iter().flatten() {
            let (site, side) = (vm.site, vm.side);
            current::beside_loops(site, || {
                current::enter(Subject::Nothing, side, Phase::ExitWorker, || drop(vm));
            });
        }
    }
}

/// The loop's VMs.
pub static VM: LoopKey<LoopVm> =
    LoopKey::new(|_| LoopVm { requests: OnceCell::new(), sessions: OnceCell::new() });

/// The VM of the running script's side on this loop; outside of scripts, that of requests.
pub fn vm_of(event_loop: &LoopState) -> Option<&Rc<Vm>> {
    let vms = VM.of(event_loop);
    match current::side() {
        Side::Requests => vms.requests.get(),
        Side::Sessions => vms.sessions.get(),
    }
}

impl Vm {
    /// A VM without `ngx`.
    #[expect(clippy::disallowed_methods, reason = "all scripts of a site are its configuration's")]
    pub fn new(site: &'static Site, side: Side) -> Result<Vm, StartError> {
        let known = side.scripts(site);
        let lua = weir_sys::lua::vm_without_restrictions();
        if known.limited {
            limit::prepare(&lua).map_err(StartError::NotMade)?;
        }
        let anchors = Anchors::new(&lua).map_err(StartError::NotMade)?;
        Ok(Vm {
            anchors,
            scripts: RefCell::new(vec![None; known.len()]),
            files: RefCell::default(),
            ended: RefCell::default(),
            ended_unyielding: RefCell::default(),
            broken: Cell::new(false),
            pools: Rc::default(),
            timers: timers::Timers::new(known),
            processes: pipe::Running::default(),
            keys: RefCell::default(),
            declined: RefCell::default(),
            lua,
            site,
            side,
            known,
        })
    }

    /// Runs `init_worker_by_lua`, once the loop has its VM.
    pub fn started(&self) {
        self.run_and_tell(Phase::InitWorker, self.known.init_worker);
    }

    /// `exit_worker_by_lua`
    pub fn ending(&self) {
        self.run_and_tell(Phase::ExitWorker, self.known.exit_worker);
    }

    /// Writes to the error log of the site.
    pub fn log(&self, level: Level, text: std::fmt::Arguments<'_>) {
        self.side.main(self.site).core.error_log.write(level, None, text);
    }

    /// A coroutine for a script. Its first resume takes the key of the script's function, and the
    /// function's arguments.
    pub fn coroutine(&self) -> mlua::Result<Thread> {
        let call = self.anchors.call();
        match self.ended.borrow_mut().pop() {
            Some(thread) => thread.reset(call).map(|()| thread),
            None => self.lua.create_thread(call),
        }
    }

    /// The same for a script that may not yield.
    pub fn unyielding_coroutine(&self) -> mlua::Result<Thread> {
        match self.ended_unyielding.borrow_mut().pop() {
            Some(thread) => thread.reset(self.anchors.call()).map(|()| thread),
            None => self.anchors.unyielding_coroutine(),
        }
    }

    /// Keeps the coroutine of an ended script for reuse.
    pub fn keep(&self, thread: Thread) {
        keep(&self.ended, thread);
    }

    /// The same for a script that may not yield.
    pub fn keep_unyielding(&self, thread: Thread) {
        keep(&self.ended_unyielding, thread);
    }

    fn run_and_tell(&self, phase: Phase, script: Option<ScriptId>) {
        if let Err(error) = self.run(phase, script) {
            self.log(Level::Emerg, format_args!("{error}"));
        }
    }

    /// Runs a script without a request.
    pub fn run(&self, phase: Phase, script: Option<ScriptId>) -> Result<(), StartError> {
        let Some(script) = script else { return Ok(()) };
        let done = self.known(script).and_then(|code| {
            let call = self.anchors.call();
            let run = || call.call::<()>(code.function.number());
            Ok(doing::running(code.name, || {
                current::enter(Subject::Nothing, self.side, phase, run)
            })?)
        });
        done.map_err(|error| StartError::Script(phase, error))
    }

    /// The compiled script of the list.
    pub fn known(&self, id: ScriptId) -> Result<Code, ScriptError> {
        if self.broken.get() {
            return Err(ScriptError::NotInitialized);
        }
        let at = id.0 as usize;
        if let Some(Some(code)) = self.scripts.borrow().get(at) {
            return Ok(code.clone());
        }
        let source = self.known.get(id).ok_or(ScriptError::Unknown)?;
        let code = self.compile(&source.name, &source.text)?;
        if let Some(place) = self.scripts.borrow_mut().get_mut(at) {
            *place = Some(code.clone());
        }
        Ok(code)
    }

    fn compile(&self, name: &str, text: &[u8]) -> Result<Code, ScriptError> {
        let mode = if is_bytecode(text) { mlua::ChunkMode::Binary } else { mlua::ChunkMode::Text };
        let chunk = self.lua.load(without_shebang(text)).set_name(name);
        let function = chunk.set_mode(mode).into_function();
        let function = function.map_err(|error| Unloadable::refused(name, &error))?;
        let function = self.anchors.keep(function)?;
        let name = doing::name(name.trim_start_matches(['=', '@']));
        Ok(Rc::new(Compiled { function, name }))
    }

    /// The compiled script of a phase that cannot yield. A file is read with a blocking call, as
    /// modules are.
    pub fn code(&self, r: &mut Request, script: &Script) -> Result<Code, ScriptError> {
        let path = match script {
            Script::Known(id) => return self.known(*id),
            Script::Named(template) => self.path_of(r, template).map_err(ScriptError::Outside)?,
        };
        self.file(path)
    }

    /// The compiled script of a session. A file that was missing at the start is read as in
    /// [`Vm::code`].
    pub fn code_of_session(&self, script: &Script) -> Result<Code, ScriptError> {
        match script {
            Script::Known(id) => self.known(*id),
            Script::Named(name) => {
                let name = name.constant().ok_or(ScriptError::Unknown)?;
                self.file(self.full(name))
            }
        }
    }

    fn file(&self, path: PathBuf) -> Result<Code, ScriptError> {
        if let Some(known) = self.files.borrow().get(&path) {
            return Ok(known.clone());
        }
        let text = weir_conf::read_file(&path);
        let text = text.map_err(|error| Unloadable::unread(&path, &error))?;
        self.add_file(path, &text)
    }

    /// The compiled script of a phase. A file is read without blocking the loop.
    pub async fn load(&self, r: &mut Request, script: &Script) -> Result<Code, Unloaded> {
        let Script::Named(template) = script else {
            return self.code(r, script).map_err(Unloaded::Broken);
        };
        let path = self.path_of(r, template);
        let path = path.map_err(|path| Unloaded::Missing(ScriptError::Outside(path)))?;
        if let Some(known) = self.files.borrow().get(&path) {
            return Ok(known.clone());
        }
        let text = match Box::pin(read(r, &path)).await {
            Ok(text) => text,
            Err(error) => return Err(Unloaded::Missing(Unloadable::unread(&path, &error).into())),
        };
        self.add_file(path, &text).map_err(Unloaded::Broken)
    }

    /// Compiles a file and keeps it.
    fn add_file(&self, path: PathBuf, text: &[u8]) -> Result<Code, ScriptError> {
        let code = self.compile(&format!("@{}", path.display()), text)?;
        let mut files = self.files.borrow_mut();
        if files.len() >= FILES {
            files.clear();
        }
        files.insert(path, code.clone());
        Ok(code)
    }

    /// The path of a file below the server's prefix. The error is a path that climbs out of its
    /// directory.
    fn path_of(&self, r: &mut Request, template: &Template) -> Result<PathBuf, PathBuf> {
        let name = template.eval(r).into_owned();
        let full = self.full(&name);
        if files::climbs(r, &name, template) { Err(full) } else { Ok(full) }
    }

    fn full(&self, name: &[u8]) -> PathBuf {
        use std::os::unix::ffi::OsStrExt;
        let path = |bytes| Path::new(std::ffi::OsStr::from_bytes(bytes));
        path(&self.site.prefix).join(path(name))
    }
}

fn keep(ended: &RefCell<Vec<Thread>>, thread: Thread) {
    let mut ended = ended.borrow_mut();
    if ended.len() < COROUTINES && thread.status() == ThreadStatus::Finished {
        ended.push(thread);
    }
}

/// Why there is no VM, or why a script outside of requests failed.
pub enum StartError {
    /// Lua lacks memory.
    NotMade(mlua::Error),
    /// The script of this phase failed.
    Script(Phase, ScriptError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::NotMade(error) => write!(f, "failed to init Lua VM: {error}"),
            StartError::Script(phase, error) => {
                let name = phase.directive().trim_end_matches('*');
                match error {
                    ScriptError::Unloadable(error) => write!(f, "{name} error: {}", error.why()),
                    error => write!(f, "{name} error: {error}"),
                }
            }
        }
    }
}

/// Why a script failed.
pub enum ScriptError {
    /// The loop has no VM.
    NoVm,
    /// `init_by_lua` failed before.
    NotInitialized,
    /// The site has no such script.
    Unknown,
    /// The file of the script is outside of its directory.
    Outside(PathBuf),
    /// The script yielded in a phase that may not.
    Yielded(Phase),
    /// The script cannot be loaded.
    Unloadable(Unloadable),
    /// The script raised an error.
    Lua(mlua::Error),
}

impl From<Unloadable> for ScriptError {
    fn from(error: Unloadable) -> ScriptError {
        ScriptError::Unloadable(error)
    }
}

impl From<mlua::Error> for ScriptError {
    fn from(error: mlua::Error) -> ScriptError {
        ScriptError::Lua(error)
    }
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScriptError::NoVm => f.write_str("there is no Lua VM"),
            ScriptError::NotInitialized => f.write_str("init_by_lua failed before"),
            ScriptError::Unknown => f.write_str("there is no such script"),
            ScriptError::Outside(path) => {
                let path = path.display();
                write!(f, "failed to load external Lua file: {path} is outside of its directory")
            }
            ScriptError::Yielded(phase) => {
                write!(f, "attempt to yield in the context of {}", phase.directive())
            }
            ScriptError::Unloadable(error) => error.fmt(f),
            ScriptError::Lua(error) => f.write_str(&text_of(error)),
        }
    }
}

/// Why there is no compiled script.
pub enum Unloaded {
    /// The file does not exist.
    Missing(ScriptError),
    /// The script cannot be loaded.
    Broken(ScriptError),
}

impl fmt::Display for Unloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unloaded::Missing(error) | Unloaded::Broken(error) => error.fmt(f),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the configuration names the file")]
async fn read(r: &Request, path: &Path) -> io::Result<Vec<u8>> {
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
