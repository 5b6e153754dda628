//! A connection that gives one answer to everything, for tests of parsers.

use proptest::prelude::*;
use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, RedisFuture, Value};

pub struct StubConnection(pub Value);

impl ConnectionLike for StubConnection {
    fn req_packed_command<'a>(&'a mut self, _: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(std::future::ready(Ok(self.0.clone())))
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _: &'a Pipeline,
        _: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(std::future::ready(Ok(vec![self.0.clone(); count])))
    }

    fn get_db(&self) -> i64 {
        0
    }
}

/// Any tree of values that the protocol can carry, the outcomes of the functions among them.
pub fn any_value() -> impl Strategy<Value = Value> {
    let outcome = "ok|absent|epoch|not_approved|corrupt|unchanged|short|newer|log|day|floor\
                   |[0-9]{1,20}|.{0,8}";
    let leaf = prop_oneof![
        Just(Value::Nil),
        Just(Value::Okay),
        any::<i64>().prop_map(Value::Int),
        any::<bool>().prop_map(Value::Boolean),
        any::<f64>().prop_map(Value::Double),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::BulkString),
        outcome.prop_map(|text| Value::BulkString(text.into_bytes())),
        ".{0,8}".prop_map(Value::SimpleString),
    ];
    leaf.prop_recursive(4, 40, 10, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..10).prop_map(Value::Array),
            prop::collection::vec(inner.clone(), 0..10).prop_map(Value::Set),
            prop::collection::vec((inner.clone(), inner), 0..4).prop_map(Value::Map),
        ]
    })
}

/// The reply of a function: an outcome, numbers, and then whatever it may be.
pub fn any_reply() -> impl Strategy<Value = Value> {
    let outcome = "ok|absent|epoch|not_approved|corrupt|unchanged|short|newer|log|day|floor";
    let bytes = || prop::collection::vec(any::<u8>(), 0..20).prop_map(Value::BulkString);
    let letters = "[AaRDSNPEB]{0,4}".prop_map(|text| Value::BulkString(text.into_bytes()));
    let numbers = prop::collection::vec(any::<i64>().prop_map(Value::Int), 1..5);
    (outcome, numbers, bytes(), letters, bytes(), bytes()).prop_map(
        |(outcome, numbers, entry, letters, ids, slots)| {
            let mut reply = vec![Value::BulkString(outcome.into_bytes())];
            let is_admission = numbers.len() == 4;
            reply.extend(numbers);
            if is_admission {
                reply.extend([entry, letters, ids, slots]);
            }
            Value::Array(reply)
        },
    )
}
