//! The subject of variables: a request or a session.

use std::cell::Cell;
use std::fmt::Arguments;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_engine::Handle;
use weir_log::Level;
use weir_proto::proxy_protocol::ProxyHeader;

use crate::address::Address;
use crate::escape;
use crate::regex::Captures;
use crate::variables::{CachedValue, Get, NotStored, VariableId, VariableValues, Variables};

/// The loop that serves a subject.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    /// Its process.
    pub pid: u32,
    /// The worker's index, from 0.
    pub worker: u32,
    /// How many workers there are.
    pub workers: u32,
    /// `$loop`: the loop's index in its worker, from 0.
    pub index: u32,
    /// Whether a master process has started it.
    pub has_master: bool,
    /// The process is the privileged agent of scripts: it serves no clients.
    pub agent: bool,
}

/// The values that variables, templates and tables need of a subject.
pub trait Subject: Sized + 'static {
    /// The block that configures it: `http`.
    const BLOCK: &'static str;

    /// Defines the variables that every configuration has.
    fn define(variables: &mut Variables<Self>);

    /// How a variable is read that nothing has defined: one with a prefix, such as `$arg_x`, or one
    /// of a module that the configuration does not use.
    fn prefixed(name: &[u8]) -> Option<Get<Self>>;

    /// The variables of the subject's configuration.
    fn variables(&self) -> &'static Variables<Self>;

    /// The cached values of variables.
    fn values(&mut self) -> &mut VariableValues;

    /// The captures of the last regular expression.
    fn captures(&mut self) -> &mut Captures;

    /// Writes to the subject's error log, which adds the subject to each line.
    fn log(&self, level: Level, text: Arguments<'_>);

    /// The peer's address, or that of the client behind it.
    fn peer(&self) -> &Address;

    /// The local address.
    fn local(&self) -> &Address;

    /// The PROXY header of a balancer in front.
    fn proxy(&self) -> Option<&ProxyHeader>;

    /// `$connection`
    fn number(&self) -> u64;

    /// The loop that serves the subject.
    fn handle(&self) -> &Handle;

    /// The time of day: seconds since 1970 (UTC), and the local zone's offset from it in seconds.
    fn local_time(&self) -> (i64, i32);

    /// The identity of that loop.
    fn identity(&self) -> Identity;

    /// The values of `X-Forwarded-For`, for modules that trust it.
    fn forwarded_for(&self) -> Vec<&[u8]> {
        Vec::new()
    }

    /// Appends a variable's value. False if the subject has none.
    fn variable(&mut self, id: VariableId, out: &mut Vec<u8>) -> bool {
        let variable = self.variables().get(id);
        let Some(slot) = variable.slot else {
            return compute(self, id, out);
        };
        if let Some(found) = self.values().read(slot, out) {
            return found;
        }
        let from = out.len();
        let found = compute(self, id, out);
        let kept =
            if found { CachedValue::Value(out[from..].to_vec()) } else { CachedValue::Missing };
        keep(self, slot, kept);
        found
    }

    /// Stores a variable's value (`set`, named groups).
    fn store_variable(&mut self, id: VariableId, value: Vec<u8>) {
        let variable = self.variables().get(id);
        if let Some(put) = variable.put {
            put(self, &value);
        } else if let Some(slot) = variable.slot {
            keep(self, slot, CachedValue::Value(value));
        }
    }

    /// Keeps the bytes of `out` from `start` on within a field line. See [`escape::within_line`].
    #[inline]
    fn within_line(&self, out: &mut Vec<u8>, start: usize) {
        escape::within_line(out, start, self.variables().own_texts());
    }

    /// The value of a variable, for modules that need a particular one.
    fn variable_value(&mut self, id: VariableId) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        self.variable(id, &mut out).then_some(out)
    }

    /// Appends the value of a variable by a name that was not known when the configuration was read
    /// (SSI). False if there is no such variable, or it has no value.
    fn variable_named(&mut self, name: &[u8], out: &mut Vec<u8>) -> bool {
        let name = name.to_ascii_lowercase();
        match self.variables().known(&name) {
            Some(id) => self.variable(id, out),
            None => Self::prefixed(&name).is_some_and(|get| get(self, out)),
        }
    }

    /// As [`Subject::variable_named`], by the number from [`Variables::number_of`].
    fn variable_at(&mut self, number: u32, out: &mut Vec<u8>) -> bool {
        self.variables().at(number).is_some_and(|id| self.variable(id, out))
    }

    /// Stores a variable by a name that was not known when the configuration was read (Lua), as
    /// `set` does. `None` removes the value.
    fn store_named(&mut self, name: &[u8], value: Option<Vec<u8>>) -> Result<(), NotStored> {
        let id = self.variables().known(&name.to_ascii_lowercase()).ok_or(NotStored::Unknown)?;
        self.store_at(id.0, value)
    }

    /// As [`Subject::store_named`], by the number from [`Variables::number_of`].
    fn store_at(&mut self, number: u32, value: Option<Vec<u8>>) -> Result<(), NotStored> {
        let variables = self.variables();
        let id = variables.at(number).ok_or(NotStored::Unknown)?;
        let variable = variables.get(id);
        if !variable.changeable {
            return Err(NotStored::Fixed);
        }
        match (value, variable.slot) {
            (None, Some(slot)) if variable.put.is_none() => keep(self, slot, CachedValue::Missing),
            (value, _) => self.store_variable(id, value.unwrap_or_default()),
        }
        Ok(())
    }
}

/// How deeply variables are being computed, each for the previous one.
#[derive(Clone, Copy)]
struct Nesting {
    depth: u32,
    /// The limit was exceeded, so no variable is computed until all are done. Two variables that
    /// need each other twice would not end.
    too_deep: bool,
}

thread_local! {
    static NESTING: Cell<Nesting> = const { Cell::new(Nesting { depth: 0, too_deep: false }) };
}

/// The same limit as in nginx. A `map` may refer to itself, which its directive cannot detect.
const DEEPEST: u32 = 100;

/// A variable that is being computed.
struct Nested;

impl Nested {
    fn begin(Nesting { depth, too_deep }: Nesting) -> Nested {
        NESTING.set(Nesting { depth: depth + 1, too_deep });
        Nested
    }
}

impl Drop for Nested {
    fn drop(&mut self) {
        let Nesting { depth, too_deep } = NESTING.get();
        NESTING.set(Nesting { depth: depth - 1, too_deep: too_deep && depth > 1 });
    }
}

fn compute<S: Subject>(subject: &mut S, id: VariableId, out: &mut Vec<u8>) -> bool {
    let (variable, nesting) = (subject.variables().get(id), NESTING.get());
    if nesting.too_deep {
        return false;
    }
    if nesting.depth >= DEEPEST {
        NESTING.set(Nesting { too_deep: true, ..nesting });
        let name = String::from_utf8_lossy(variable.name());
        subject.log(Level::Error, format_args!("cycle while evaluating variable \"{name}\""));
        return false;
    }
    let _nested = Nested::begin(nesting);
    variable.get.as_ref().is_some_and(|get| get(subject, out))
}

fn keep<S: Subject>(subject: &mut S, slot: u32, kept: CachedValue) {
    let slots = subject.variables().slots();
    subject.values().keep(slot, kept, slots);
}

/// The address itself, as `$binary_remote_addr` has it.
pub fn binary(address: &Address, out: &mut Vec<u8>) {
    match address {
        Address::Inet(inet) => match inet.ip() {
            IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
            IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
        },
        other => other.write_host(out),
    }
}

/// How a loop ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retire {
    /// Another worker took over. Idle connections stay until their clients had a chance to send
    /// another request.
    Reload,
    /// The server ends. Idle connections are closed now.
    Quit,
    /// As `Quit`, but another process accepts from the sockets, or will.
    Yield,
}

/// The local zone's offset from UTC, cached for one second.
#[derive(Debug)]
pub struct Offset(Cell<(i64, i32)>);

impl Default for Offset {
    fn default() -> Self {
        Offset(Cell::new((i64::MIN, 0)))
    }
}

impl Offset {
    /// The time of day: seconds since 1970 (UTC), and the local zone's offset from it in seconds.
    pub fn local_time(&self, handle: &Handle) -> (i64, i32) {
        let now = handle.wall().secs;
        let (at, offset) = self.0.get();
        if at == now {
            return (now, offset);
        }
        let offset = weir_sys::localtime::local(now).offset;
        self.0.set((now, offset));
        (now, offset)
    }
}

/// The last `$connection`. All loops of a process share it.
static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

/// The next connection's number.
pub fn next_connection() -> u64 {
    CONNECTIONS.fetch_add(1, Ordering::Relaxed) + 1
}
