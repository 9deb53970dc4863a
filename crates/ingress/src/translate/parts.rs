//! Joins the parts of a configuration.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Translation;
use super::global::Global;
use super::heads::heads;
use super::passthrough;
use super::text::{ConfigText, TextPiece};
use super::work::{Base, Part};
use crate::report::{Findings, ObjectId};

/// All parts of a configuration.
pub(super) struct Parts<'p> {
    /// The findings about Ingresses and the administrator's settings. It has no directives.
    pub(super) common: &'p Part,
    pub(super) gateways: &'p Part,
    pub(super) sites: Vec<&'p Part>,
    /// `None` if the ports are left to Gateways.
    pub(super) rest: Option<&'p Part>,
    pub(super) sessions: &'p Part,
}

impl<'p> Parts<'p> {
    /// All parts. If several make a shared piece, the last one here counts.
    fn all(&self) -> impl Iterator<Item = &'p Part> {
        let first = [self.common, self.gateways].into_iter();
        first.chain(self.sites.iter().copied()).chain(self.rest).chain([self.sessions])
    }

    /// Joins the parts.
    pub(super) fn join(&self, base: &Base, global: Global, served: Vec<ObjectId>) -> Translation {
        let mut findings = Findings::default();
        let mut made = Translation { served, ..Translation::default() };
        for part in self.all() {
            findings.extend(&part.findings);
            made.files.extend(part.files.iter().cloned());
            made.groups.extend(part.groups.iter().cloned());
        }
        made.findings = findings.into_sorted();
        made.statuses = self.gateways.statuses.clone();
        made.text = self.text(base, global);
        made
    }

    fn text(&self, base: &Base, mut global: Global) -> ConfigText {
        let owners = std::mem::take(&mut global.owners);
        let sites = || self.rest.into_iter().chain(self.sites.iter().copied());
        let http = sites().chain([self.gateways]).filter_map(|part| part.http.as_ref());
        let sessions = [self.gateways, self.sessions].into_iter().chain(sites());
        let sessions = sessions.filter_map(|part| part.streams.as_ref()).cloned();
        let mut sessions: Vec<Arc<TextPiece>> = sessions.collect();
        let others = self.rest.and_then(|_| passthrough::fallback_server(base));
        sessions.extend(others.map(|server| TextPiece::of(&[server], 1, &owners)));
        let heads = heads(&base.settings, global, !sessions.is_empty());

        let mut text = ConfigText::default();
        text.push(TextPiece::of(&heads.main, 0, &owners));
        text.begin("http");
        text.push(TextPiece::of(&heads.http, 1, &owners));
        let shared = self.all().flat_map(|part| &part.shared);
        once(shared).for_each(|piece| text.push(piece));
        http.for_each(|piece| text.push(piece.clone()));
        text.end("http");
        if !heads.stream.is_empty() || !sessions.is_empty() {
            text.begin("stream");
            text.push(TextPiece::of(&heads.stream, 1, &owners));
            if !sessions.is_empty() {
                let shared = self.all().flat_map(|part| &part.shared_streams);
                once(shared).for_each(|piece| text.push(piece));
            }
            sessions.into_iter().for_each(|piece| text.push(piece));
            text.end("stream");
        }
        text
    }
}

/// One piece for each key, in the order of the keys.
fn once<'p>(
    shared: impl Iterator<Item = &'p (String, Arc<TextPiece>)>,
) -> impl Iterator<Item = Arc<TextPiece>> {
    let all: BTreeMap<&str, &Arc<TextPiece>> =
        shared.map(|(key, piece)| (key.as_str(), piece)).collect();
    all.into_values().cloned()
}
