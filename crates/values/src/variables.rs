//! Variables: the names by which a configuration refers to values of a request or a session.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use weir_conf::{Error, Spot};
use weir_proto::{Renew, as_new};

use crate::escape::OwnTexts;
use crate::subject::Subject;

/// A variable's index in the site's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VariableId(pub(crate) u32);

/// Appends a variable's value; false where the request has none (nginx's "not found").
pub type Get<S> = Arc<dyn Fn(&mut S, &mut Vec<u8>) -> bool + Send + Sync>;
/// Carries out `set $name value` for a variable that is more than a stored value.
pub type Put<S> = fn(&mut S, &[u8]);

/// Why a variable cannot be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotStored {
    /// The configuration has no such variable.
    Unknown,
    /// The variable is computed.
    Fixed,
}

/// The variables of a site.
pub struct Variables<S> {
    by_name: HashMap<Vec<u8>, VariableId>,
    list: Vec<Variable<S>>,
    slots: u32,
    own_texts: OwnTexts,
    /// The positions of texts with several lines, each with its variable.
    several_lines: Vec<(VariableId, Spot)>,
    /// The variables that a part of the configuration uses, while that is recorded.
    noted: Option<VariableUses<S>>,
}

/// How a part of a configuration uses the variables of a site. See [`Variables::note`].
pub struct VariableUses<S> {
    referred: Vec<VariableId>,
    stored: Vec<StoredVariable<S>>,
    /// It has done something else as well.
    more: bool,
}

/// A variable that something stores.
struct StoredVariable<S> {
    id: VariableId,
    /// How it is computed until a value is stored.
    get: Get<S>,
    /// This replaces an earlier definition by `set` or `map`.
    replaces: bool,
}

impl<S> Default for VariableUses<S> {
    fn default() -> Self {
        VariableUses { referred: Vec::new(), stored: Vec::new(), more: false }
    }
}

impl<S> VariableUses<S> {
    /// Whether it has only referred to variables and stored values. Another site with the same
    /// numbers can repeat that.
    pub fn is_repeatable(&self) -> bool {
        !self.more
    }
}

pub(crate) struct Variable<S> {
    name: Vec<u8>,
    pub(crate) get: Option<Get<S>>,
    pub(crate) put: Option<Put<S>>,
    /// The slot of the cached value, if values are cached.
    pub(crate) slot: Option<u32>,
    pub(crate) changeable: bool,
    /// Something refers to the variable.
    referred: bool,
    /// Only another site has used the name. The number is reserved for it.
    reserved: bool,
}

impl<S> Variable<S> {
    /// Its name, in lower case.
    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }
}

/// The cached values of a request. A subrequest may share those of its parent.
#[derive(Debug, Default)]
pub struct VariableValues {
    own: Vec<CachedValue>,
    shared: Option<Rc<RefCell<Vec<CachedValue>>>>,
}

#[derive(Debug, Default, Clone)]
pub(crate) enum CachedValue {
    #[default]
    Unknown,
    Missing,
    Value(Vec<u8>),
}

impl Renew for VariableValues {
    fn renew(&mut self) {
        as_new!(self, VariableValues { own; shared });
    }
}

impl VariableValues {
    /// The same values for another request. Each sees what the other stores.
    pub fn share(&mut self) -> VariableValues {
        let own = std::mem::take(&mut self.own);
        let shared = self.shared.get_or_insert_with(|| Rc::new(RefCell::new(own))).clone();
        VariableValues { own: Vec::new(), shared: Some(shared) }
    }

    /// A copy of the present values.
    pub fn copy(&self) -> VariableValues {
        let own = match &self.shared {
            None => self.own.clone(),
            Some(shared) => shared.borrow().clone(),
        };
        VariableValues { own, shared: None }
    }

    /// Appends a cached value. `None` if nothing is cached.
    #[inline]
    pub(crate) fn read(&self, slot: u32, out: &mut Vec<u8>) -> Option<bool> {
        match &self.shared {
            None => read(&self.own, slot, out),
            Some(shared) => read(&shared.borrow(), slot, out),
        }
    }

    #[inline]
    pub(crate) fn keep(&mut self, slot: u32, kept: CachedValue, slots: u32) {
        match &self.shared {
            None => keep(&mut self.own, slot, kept, slots),
            Some(shared) => keep(&mut shared.borrow_mut(), slot, kept, slots),
        }
    }
}

fn read(values: &[CachedValue], slot: u32, out: &mut Vec<u8>) -> Option<bool> {
    match values.get(slot as usize)? {
        CachedValue::Value(value) => {
            out.extend_from_slice(value);
            Some(true)
        }
        CachedValue::Missing => Some(false),
        CachedValue::Unknown => None,
    }
}

fn keep(values: &mut Vec<CachedValue>, slot: u32, kept: CachedValue, slots: u32) {
    if values.len() <= slot as usize {
        values.resize(slots as usize, CachedValue::Unknown);
    }
    if let Some(place) = values.get_mut(slot as usize) {
        *place = kept;
    }
}

impl<S: Subject> Default for Variables<S> {
    fn default() -> Self {
        Variables::new()
    }
}

impl<S: Subject> Variables<S> {
    /// The variables of every site.
    pub fn new() -> Self {
        let mut this = Variables {
            by_name: HashMap::new(),
            list: Vec::new(),
            slots: 0,
            own_texts: OwnTexts::default(),
            several_lines: Vec::new(),
            noted: None,
        };
        S::define(&mut this);
        this
    }

    /// Defines a variable that is computed each time it is read.
    pub fn define(
        &mut self,
        name: &str,
        get: impl Fn(&mut S, &mut Vec<u8>) -> bool + Send + Sync + 'static,
    ) -> VariableId {
        let id = self.place(name.as_bytes());
        self.list[id.0 as usize].get = Some(Arc::new(get));
        self.note_more();
        id
    }

    /// Defines a variable that is computed once for each request, such as those of `map`.
    pub fn define_kept(
        &mut self,
        name: &str,
        get: impl Fn(&mut S, &mut Vec<u8>) -> bool + Send + Sync + 'static,
    ) -> VariableId {
        let id = self.define(name, get);
        self.slot(id);
        id
    }

    /// Defines a variable that `set` may change and another definition may replace. With `kept`, it
    /// is computed once for each request.
    pub fn define_changeable(
        &mut self,
        name: &str,
        kept: bool,
        get: impl Fn(&mut S, &mut Vec<u8>) -> bool + Send + Sync + 'static,
    ) {
        let id = if kept { self.define_kept(name, get) } else { self.define(name, get) };
        self.list[id.0 as usize].changeable = true;
    }

    /// Lets `set` change a variable: `put` gets the new value.
    pub fn settable(&mut self, id: VariableId, put: Put<S>) {
        let variable = &mut self.list[id.0 as usize];
        (variable.put, variable.changeable) = (Some(put), true);
        self.note_more();
    }

    /// A variable that a module stores. Its first use creates it. It has no value until it is
    /// stored.
    pub fn stored(&mut self, name: &[u8]) -> VariableId {
        self.stored_or(name, |_, _| false)
    }

    /// As [`Variables::stored`], for a named group. As in nginx, it replaces an earlier definition
    /// by `set` or `map`.
    pub fn captured(&mut self, name: &[u8]) -> VariableId {
        let id = self.refer(name);
        self.store(StoredVariable { id, get: Arc::new(|_, _| false), replaces: true });
        id
    }

    /// As [`Variables::stored`]. `get` computes the value until one is stored, unless the variable
    /// is defined otherwise.
    pub fn stored_or(
        &mut self,
        name: &[u8],
        get: impl Fn(&mut S, &mut Vec<u8>) -> bool + Send + Sync + 'static,
    ) -> VariableId {
        let id = self.refer(name);
        self.store(StoredVariable { id, get: Arc::new(get), replaces: false });
        id
    }

    fn store(&mut self, stored: StoredVariable<S>) {
        self.apply(&stored);
        if let Some(uses) = &mut self.noted {
            uses.stored.push(stored);
        }
    }

    fn apply(&mut self, stored: &StoredVariable<S>) {
        let variable = &mut self.list[stored.id.0 as usize];
        let is_kept = variable.put.is_none();
        if variable.get.is_none() || (stored.replaces && is_kept) {
            variable.get = Some(Arc::clone(&stored.get));
            variable.changeable = true;
        }
        if is_kept {
            self.slot(stored.id);
        }
    }

    /// The variable of this name. Whether it exists is checked once everything is read
    /// ([`Variables::check`]).
    pub fn refer(&mut self, name: &[u8]) -> VariableId {
        let id = self.place(name);
        self.list[id.0 as usize].referred = true;
        if let Some(uses) = &mut self.noted {
            uses.referred.push(id);
        }
        id
    }

    /// Gives names that only `other` has the same numbers as there. False if the names so far have
    /// other numbers; then nothing is changed.
    pub fn number_as(&mut self, other: &Variables<S>) -> bool {
        let begins = self.list.len() <= other.list.len()
            && self.list.iter().zip(&other.list).all(|(own, theirs)| own.name == theirs.name);
        if begins {
            for theirs in &other.list[self.list.len()..] {
                let id = self.place(&theirs.name);
                self.list[id.0 as usize].reserved = true;
            }
        }
        begins
    }

    /// The number of names that only another site has used, and the number of all names.
    pub fn reserved(&self) -> (usize, usize) {
        (self.list.iter().filter(|variable| variable.reserved).count(), self.list.len())
    }

    /// Records the uses of variables from now on, until [`Variables::noted`].
    pub fn note(&mut self) {
        self.noted = Some(VariableUses::default());
    }

    /// The uses since [`Variables::note`].
    pub fn noted(&mut self) -> VariableUses<S> {
        self.noted.take().unwrap_or_default()
    }

    /// Whether all variables that `uses` has stored can be stored here, too.
    pub fn can_repeat(&self, uses: &VariableUses<S>) -> bool {
        uses.stored.iter().all(|stored| {
            let variable = self.get(stored.id);
            variable.get.is_none() || variable.changeable
        })
    }

    /// Repeats recorded uses in a site with the same numbers.
    pub fn repeat(&mut self, uses: &VariableUses<S>) {
        for id in &uses.referred {
            let variable = &mut self.list[id.0 as usize];
            (variable.referred, variable.reserved) = (true, false);
        }
        uses.stored.iter().for_each(|stored| self.apply(stored));
    }

    fn note_more(&mut self) {
        if let Some(uses) = &mut self.noted {
            uses.more = true;
        }
    }

    /// Records texts of the configuration that a variable may have as its value, or as a part of
    /// it.
    pub fn own_texts_of<'t>(
        &mut self,
        name: &[u8],
        texts: impl Iterator<Item = &'t [u8]>,
        written: Spot,
    ) {
        let added = texts.filter(|text| self.own_texts.add(text)).count();
        if added > 0 {
            self.note_more();
            let id = self.place(name);
            self.several_lines.push((id, written));
        }
    }

    /// The configuration's texts of several lines.
    #[inline]
    pub fn own_texts(&self) -> &OwnTexts {
        &self.own_texts
    }

    /// Variables whose value may have several lines, with the positions of these texts.
    pub fn several_lines(&self) -> impl Iterator<Item = &(VariableId, Spot)> {
        self.several_lines.iter()
    }

    /// The names of all variables, in lower case.
    pub fn names(&self) -> impl Iterator<Item = String> {
        let used = self.list.iter().filter(|variable| !variable.reserved);
        used.map(|variable| String::from_utf8_lossy(&variable.name).into_owned())
    }

    /// Whether anything refers to the variable of this name, in lower case.
    pub fn is_referred(&self, name: &[u8]) -> bool {
        self.known(name).is_some_and(|id| self.get(id).referred)
    }

    fn place(&mut self, name: &[u8]) -> VariableId {
        let key = name.to_ascii_lowercase();
        if let Some(&id) = self.by_name.get(&key) {
            self.list[id.0 as usize].reserved = false;
            return id;
        }
        let id = VariableId(self.list.len() as u32);
        self.list.push(Variable {
            name: key.clone(),
            get: None,
            put: None,
            slot: None,
            changeable: false,
            referred: false,
            reserved: false,
        });
        self.by_name.insert(key, id);
        id
    }

    /// The number of the variable with this name, in lower case.
    pub fn number_of(&self, name: &[u8]) -> Option<u32> {
        self.known(name).map(|id| id.0)
    }

    /// Whether a variable of this name is defined and cannot be set: nginx's
    /// `the duplicate "x" variable`.
    pub fn is_fixed(&self, name: &[u8]) -> bool {
        let id = self.by_name.get(name.to_ascii_lowercase().as_slice());
        id.is_some_and(|id| {
            let v = &self.list[id.0 as usize];
            v.get.is_some() && !v.changeable
        })
    }

    /// Resolves names such as `http_user_agent`. An error names a variable that is not defined.
    pub fn check(&mut self) -> Result<(), Error> {
        for variable in self.list.iter_mut().filter(|variable| !variable.reserved) {
            if variable.get.is_none() {
                variable.get = S::prefixed(&variable.name);
            }
            if variable.get.is_none() {
                let name = String::from_utf8_lossy(&variable.name);
                return Err(Error::emerg(format_args!("unknown \"{name}\" variable")));
            }
        }
        Ok(())
    }

    /// The variable of this name in lower case, where there is one.
    pub(crate) fn known(&self, name: &[u8]) -> Option<VariableId> {
        self.by_name.get(name).copied().filter(|id| !self.get(*id).reserved)
    }

    /// The variable of this number.
    pub(crate) fn at(&self, number: u32) -> Option<VariableId> {
        let variable = self.list.get(number as usize)?;
        (!variable.reserved).then_some(VariableId(number))
    }

    #[inline]
    pub(crate) fn get(&self, id: VariableId) -> &Variable<S> {
        &self.list[id.0 as usize]
    }

    /// How many values a subject may keep.
    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    fn slot(&mut self, id: VariableId) {
        let variable = &mut self.list[id.0 as usize];
        if variable.slot.is_none() {
            variable.slot = Some(self.slots);
            self.slots += 1;
        }
    }
}

impl<S> std::fmt::Debug for Variables<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} variables", self.list.len())
    }
}
