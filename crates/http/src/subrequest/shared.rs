//! What belongs to the client's own request, also for its subrequests. nginx: r->main.

use crate::request::Request;
use crate::request::contexts::ContextKey;
use crate::site::settings::LocationConf;

impl Request {
    /// The settings of the client's own request.
    pub fn main_conf(&self) -> &'static LocationConf {
        &self.main_location.unwrap_or(self.location).conf
    }

    /// Reads a context that the client's request and its subrequests share, whichever of them has set it.
    pub fn family_context<T, V>(
        &self,
        key: &'static ContextKey<T>,
        read: impl FnOnce(&T) -> V,
    ) -> Option<V> {
        match (key.of(&self.contexts), &self.family) {
            (Some(context), _) => Some(read(context)),
            (None, Some(family)) => key.of(&family.contexts.borrow()).map(read),
            (None, None) => None,
        }
    }

    /// Sets a context that the client's request and its subrequests share. The client's request needs no memory for a family
    /// that it does not have: subrequests get copies, as the key says.
    pub fn set_family_context<T>(&mut self, key: &'static ContextKey<T>, context: T) {
        match &self.family {
            Some(family) if !self.is_main() => key.set(&mut family.contexts.borrow_mut(), context),
            _ => key.set(&mut self.contexts, context),
        }
    }
}
