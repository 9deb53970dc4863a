//! The parts of the last translation, for reuse by the next.
//!
//! A part is reused if three inputs are the same: the [`Base`], which several parts share, the
//! value that the part is made of, and the results of its lookups. The function that makes a part
//! gets these three alone, so nothing else can change it.
//!
//! The parts are the hosts, the server for other names, the administrator's ports, and Gateway API
//! as a whole. Parts that the next translation does not reuse are dropped.

use std::ops::Deref;

use super::files::Certificates;
use super::frame::{DefaultInput, HostInput};
use super::index::{Lookup, NamedObjects};
use super::sources::KnownIngress;
use super::work::{Base, OfIngresses, Part, Servers, Work};
use crate::settings::Settings;

/// What a translation keeps for the next.
#[derive(Debug, Default)]
pub struct Memory {
    /// The settings that everything here was made with.
    settings: Settings,
    pub(super) ingresses: Vec<KnownIngress>,
    pub(super) certificates: Certificates,
    pub(super) hosts: Hosts,
    pub(super) gateways: Gateways,
}

/// The parts of Ingresses and of the administrator's ports.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    pub(super) base: Base,
    /// Ordered by name.
    pub(super) sites: Vec<Remembered<HostInput>>,
    pub(super) rest: Option<Remembered<DefaultInput>>,
    pub(super) sessions: Option<Remembered<()>>,
}

/// The part of Gateway API. It is made of the arguments of `listen` that have a default server
/// already.
#[derive(Debug, Default)]
pub(super) struct Gateways {
    pub(super) base: Base,
    pub(super) part: Option<Remembered<OfIngresses>>,
}

impl Memory {
    /// Drops everything if the settings have changed.
    pub(super) fn reset_unless_made_with(&mut self, settings: &Settings) {
        if self.settings != *settings {
            *self = Memory { settings: settings.clone(), ..Memory::default() };
        }
    }
}

impl Hosts {
    /// Drops all parts if the base has changed.
    pub(super) fn reset_unless_made_with(&mut self, base: Base) {
        if self.base != base {
            *self = Hosts { base, ..Hosts::default() };
        }
    }
}

impl Gateways {
    /// Drops the part if the base has changed.
    pub(super) fn reset_unless_made_with(&mut self, base: Base) {
        if self.base != base {
            self.part = None;
        }
        // Equal objects are replaced, so that the next comparison is of addresses.
        self.base = base;
    }
}

/// A part and its inputs. It is boxed, since each translation moves it.
#[derive(Debug)]
pub(super) struct Remembered<K>(Box<MadeOf<K>>);

#[derive(Debug)]
pub(super) struct MadeOf<K> {
    pub(super) of: K,
    lookups: Box<[Lookup]>,
    pub(super) part: Part,
}

impl<K> Deref for Remembered<K> {
    type Target = MadeOf<K>;

    fn deref(&self) -> &MadeOf<K> {
        &self.0
    }
}

impl<K: PartialEq> Remembered<K> {
    /// The part made of `of`: `before`, if its inputs are the same, or a new one.
    pub(super) fn next(
        before: Option<Remembered<K>>,
        (base, all): (&Base, &NamedObjects<'_>),
        of: K,
        make: fn(&mut Work<'_>, &K) -> Servers,
    ) -> Remembered<K> {
        if let Some(mut before) = before
            && before.of == of
            && before.0.lookups.iter_mut().all(|lookup| lookup.finds_same(all))
        {
            return before;
        }
        let mut work = Work::new(base, all);
        let servers = make(&mut work, &of);
        let (part, lookups) = work.finish(servers);
        Remembered(Box::new(MadeOf { of, lookups, part }))
    }
}
