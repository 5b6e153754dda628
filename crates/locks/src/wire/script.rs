//! What can be sent to a Redis: commands, and Lua scripts by their hash.

use redis::{Arg, Cmd, Script, ToRedisArgs, cmd};
use std::sync::OnceLock;

/// A command, or a call of a script.
pub trait Request: Sync {
    fn command(&self) -> &Cmd;

    /// What the command's hash stands for, if it is a call.
    fn script(&self) -> Option<&'static LuaScript> {
        None
    }

    /// As typed, with a script's name instead of its hash.
    fn text(&self) -> String {
        let words = self.command().args_iter().map(|argument| match argument {
            Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::new(),
        });
        let mut words: Vec<String> = words.collect();
        if let (Some(script), Some(hash)) = (self.script(), words.get_mut(1)) {
            script.name.clone_into(hash);
        }
        words.join(" ")
    }
}

impl Request for Cmd {
    fn command(&self) -> &Cmd {
        self
    }
}

/// A Lua script: a file's name and its text.
pub struct LuaScript {
    pub name: &'static str,
    pub source: &'static str,
    hash: OnceLock<String>,
}

impl LuaScript {
    pub const fn new(name: &'static str, source: &'static str) -> Self {
        Self { name, source, hash: OnceLock::new() }
    }

    /// A call with these keys; arguments follow with [`ScriptCall::arg`].
    pub fn on(&'static self, keys: &[&str]) -> ScriptCall {
        let hash = self.hash.get_or_init(|| Script::new(self.source).get_hash().to_owned());
        let mut evalsha = cmd("EVALSHA");
        evalsha.arg(hash).arg(keys.len()).arg(keys);
        ScriptCall { script: self, evalsha }
    }
}

/// A script with its keys and arguments.
pub struct ScriptCall {
    script: &'static LuaScript,
    evalsha: Cmd,
}

impl ScriptCall {
    #[must_use]
    pub fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        self.evalsha.arg(argument);
        self
    }
}

impl Request for ScriptCall {
    fn command(&self) -> &Cmd {
        &self.evalsha
    }

    fn script(&self) -> Option<&'static LuaScript> {
        Some(self.script)
    }
}
