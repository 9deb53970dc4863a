//! The content handler of a location, with its settings.
//!
//! Handler and settings are one value. A block inherits both or neither, so a handler never runs
//! with the settings of a block that did not name it. Settings that other handlers use as well
//! (timeouts, `proxy_set_header`) are inherited as settings of modules.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use crate::request::Request;
use crate::request::step::Answer;
use crate::site::location::Kind;

/// The current settings do not name the handler that must answer.
#[derive(Debug, PartialEq, Eq)]
pub struct LacksSettings;

/// A content handler, declared once by its module. `T` is the settings that its directive reads.
pub struct ContentHandler<T: 'static> {
    /// nginx's name of the module, without `ngx_http_` and `_module`.
    pub module: &'static str,
    /// Whether `limit_except` inherits the handler. nginx's handlers are as in nginx, weir's own
    /// are inherited. Without it, a request with a limited method is served from files.
    pub in_limit_except: bool,
    /// If a later `if` does not name the handler, the request is served from files.
    pub optional: bool,
    /// Answers a request.
    pub run: for<'a> fn(&'a mut Request, &'static T) -> Answer<'a>,
}

impl<T: Clone + Debug + Send + Sync + 'static> ContentHandler<T> {
    /// The handler with these settings.
    pub fn with(&'static self, settings: T) -> Content {
        Content(Arc::new(Named { handler: self, settings }))
    }

    /// The settings, if this is the handler of the block.
    pub fn of<'a>(&'static self, content: &'a Option<Content>) -> Option<&'a T> {
        let named: &dyn Any = &*content.as_ref()?.0;
        let named: &Named<T> = named.downcast_ref()?;
        std::ptr::eq(named.handler, self).then_some(&named.settings)
    }

    /// The same, to be changed.
    pub fn change<'a>(&'static self, content: &'a mut Option<Content>) -> Option<&'a mut T> {
        let settings = self.of(content)?;
        if Arc::strong_count(&content.as_ref()?.0) > 1 {
            *content = Some(self.with(settings.clone()));
        }
        let named: &mut dyn Any = Arc::get_mut(&mut content.as_mut()?.0)?;
        let named: &mut Named<T> = named.downcast_mut()?;
        Some(&mut named.settings)
    }
}

/// A handler with its settings.
struct Named<T: 'static> {
    handler: &'static ContentHandler<T>,
    settings: T,
}

trait AnyHandler: Any + Send + Sync {
    fn module(&self) -> &'static str;
    fn in_limit_except(&self) -> bool;
    fn optional(&self) -> bool;
    /// The address of the declaration, which identifies the handler.
    fn identity(&self) -> usize;
    fn answer<'a>(&'static self, r: &'a mut Request) -> Answer<'a>;
}

impl<T: Send + Sync + 'static> AnyHandler for Named<T> {
    fn module(&self) -> &'static str {
        self.handler.module
    }

    fn in_limit_except(&self) -> bool {
        self.handler.in_limit_except
    }

    fn optional(&self) -> bool {
        self.handler.optional
    }

    fn identity(&self) -> usize {
        std::ptr::from_ref(self.handler).addr()
    }

    fn answer<'a>(&'static self, r: &'a mut Request) -> Answer<'a> {
        (self.handler.run)(r, &self.settings)
    }
}

/// The content handler of a block.
#[derive(Clone)]
pub struct Content(Arc<dyn AnyHandler>);

impl Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Content").field(&self.0.module()).finish()
    }
}

impl Content {
    /// Whether a block of this kind inherits the handler. `if` does, `limit_except` inherits some
    /// handlers. Nested locations name their own.
    pub fn is_kept_in(&self, block: &Kind) -> bool {
        match block {
            Kind::If => true,
            Kind::LimitExcept => self.0.in_limit_except(),
            Kind::Server | Kind::Exact | Kind::Prefix { .. } | Kind::Regex(_) | Kind::Named => {
                false
            }
        }
    }

    /// The handler after several `if` blocks were entered. As in nginx, the last `if` that names a
    /// handler decides on the handler. The last `if` of all, with the handler `own`, decides on the
    /// settings. So a handler answers only if both name the same directive. If they do not, `echo`
    /// and Lua leave the request to the static files.
    pub fn after_ifs<'a>(
        chosen: Option<&'a Content>,
        own: Option<&'a Content>,
    ) -> Result<Option<&'a Content>, LacksSettings> {
        let Some(chosen) = chosen else { return Ok(own) };
        if own.is_some_and(|own| own.0.identity() == chosen.0.identity()) {
            return Ok(own);
        }
        match chosen.0.optional() {
            true => Ok(None),
            false => Err(LacksSettings),
        }
    }

    /// The module of the handler.
    pub fn module(&self) -> &'static str {
        self.0.module()
    }

    /// Runs the handler.
    pub fn answer<'a>(&'static self, r: &'a mut Request) -> Answer<'a> {
        self.0.answer(r)
    }
}
