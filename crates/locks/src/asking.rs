//! A request, until it is answered.

/// See the head of this file.
pub trait Asking<T, E>: Future<Output = Result<T, E>> + Send {}

impl<T, E, F: Future<Output = Result<T, E>> + Send> Asking<T, E> for F {}
