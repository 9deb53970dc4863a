//! What the last translation has made, for the next one.
//!
//! A part is taken as it was if three things are the same: the [`Base`], which several parts have in common, the
//! value that the part is made of, and what each of its looks finds. A part is made by a function without surroundings, which
//! gets these three alone. So nothing else can change it.
//!
//! Parts are hosts, the server for other names, the ports of the administrator, and Gateway API as a whole: it is made anew
//! if anything that it has looked at has changed. What the next translation does not take is dropped.

use std::collections::BTreeSet;
use std::ops::Deref;

use super::files::Certificates;
use super::frame::{Rest, Site};
use super::index::{Look, NamedObjects};
use super::sources::KnownIngress;
use super::work::{Base, Part, Servers, Work};
use crate::settings::Settings;

/// What a translation remembers of the last snapshot.
#[derive(Debug, Default)]
pub struct Memory {
    /// The settings of all below.
    settings: Settings,
    pub(super) ingresses: Vec<KnownIngress>,
    pub(super) certificates: Certificates,
    pub(super) hosts: Hosts,
    pub(super) gateways: Gateways,
}

/// The parts that Ingresses and the administrator ask for.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    pub(super) base: Base,
    /// In the order of their names.
    pub(super) sites: Vec<Remembered<Site>>,
    pub(super) rest: Option<Remembered<Rest>>,
    pub(super) sessions: Option<Remembered<()>>,
}

/// The part of Gateway API. It is made of the words of `listen` that have a default server already.
#[derive(Debug, Default)]
pub(super) struct Gateways {
    pub(super) base: Base,
    pub(super) part: Option<Remembered<BTreeSet<String>>>,
}

impl Memory {
    /// Forgets all that other settings have made.
    pub(super) fn keep_for(&mut self, settings: &Settings) {
        if self.settings != *settings {
            *self = Memory { settings: settings.clone(), ..Memory::default() };
        }
    }
}

impl Hosts {
    /// Forgets all that another base has made.
    pub(super) fn keep_for(&mut self, base: Base) {
        if self.base != base {
            *self = Hosts { base, ..Hosts::default() };
        }
    }
}

impl Gateways {
    /// Forgets what another base has made.
    pub(super) fn keep_for(&mut self, base: Base) {
        if self.base != base {
            self.part = None;
        }
        // Objects that are equal may be others.
        self.base = base;
    }
}

/// A part, and what it was made of. It is moved in each translation, so it is a pointer.
#[derive(Debug)]
pub(super) struct Remembered<K>(Box<MadeOf<K>>);

#[derive(Debug)]
pub(super) struct MadeOf<K> {
    pub(super) of: K,
    looks: Box<[Look]>,
    pub(super) part: Part,
}

impl<K> Deref for Remembered<K> {
    type Target = MadeOf<K>;

    fn deref(&self) -> &MadeOf<K> {
        &self.0
    }
}

impl<K: PartialEq> Remembered<K> {
    /// The part that `of` makes now: the one before if that is the same.
    pub(super) fn next(
        before: Option<Remembered<K>>,
        (base, all): (&Base, &NamedObjects<'_>),
        of: K,
        make: fn(&mut Work<'_>, &K) -> Servers,
    ) -> Remembered<K> {
        if let Some(mut before) = before
            && before.of == of
            && before.0.looks.iter_mut().all(|look| look.holds(all))
        {
            return before;
        }
        let mut work = Work::new(base, all);
        let servers = make(&mut work, &of);
        let (part, looks) = work.finish(servers);
        Remembered(Box::new(MadeOf { of, looks, part }))
    }
}
