//! Rows of the domain types. By hand: sqlx's derives would compile sqlx a second time.

use crate::domain::{AccessPolicy, Order, OrderId, OrderStatus, Sale, SaleId, UserId};
use sqlx::{
    Decode, Encode, Postgres, Type,
    encode::IsNull,
    error::BoxDynError,
    postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo, PgValueRef},
};
use uuid::Uuid;

/// Stores a type as another type.
macro_rules! stored {
    ($name:ty as $stored:ty, $to:path, $from:path) => {
        impl Type<Postgres> for $name {
            fn type_info() -> PgTypeInfo {
                <$stored as Type<Postgres>>::type_info()
            }
        }

        impl PgHasArrayType for $name {
            fn array_type_info() -> PgTypeInfo {
                <$stored as PgHasArrayType>::array_type_info()
            }
        }

        impl Encode<'_, Postgres> for $name {
            fn encode_by_ref(&self, to: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
                Encode::<Postgres>::encode_by_ref(&$to(*self), to)
            }
        }

        impl<'r> Decode<'r, Postgres> for $name {
            fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
                <$stored as Decode<Postgres>>::decode(value).map($from)
            }
        }
    };
}

stored!(SaleId as i64, SaleId::get, SaleId::from_i64);
stored!(OrderId as i64, OrderId::get, OrderId::from_i64);
stored!(UserId as Uuid, UserId::uuid, UserId::from_uuid);

impl Type<Postgres> for OrderStatus {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_name("order_status")
    }
}

impl Encode<'_, Postgres> for OrderStatus {
    fn encode_by_ref(&self, to: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        Encode::<Postgres>::encode_by_ref(&self.as_str(), to)
    }
}

impl<'r> Decode<'r, Postgres> for OrderStatus {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        let text = <&str as Decode<Postgres>>::decode(value)?;
        text.parse().map_err(|()| format!("not an order status: {text}").into())
    }
}

/// Reads a struct from columns of its fields' names; `with` names a nested struct.
macro_rules! row {
    ($name:ident: $($column:ident),* $(with $part:ident)?) => {
        impl sqlx::FromRow<'_, sqlx::postgres::PgRow> for $name {
            fn from_row(row: &sqlx::postgres::PgRow) -> Result<Self, sqlx::Error> {
                Ok(Self {
                    $($column: sqlx::Row::try_get(row, stringify!($column))?,)*
                    $($part: sqlx::FromRow::from_row(row)?,)?
                })
            }
        }
    };
}
pub(crate) use row;

row!(Sale: id, title, description, image_url, currency, price_cents, original_price_cents, stock,
    per_user_limit, opens_at, closes_at, payment_timeout_secs, paused, closed, epoch, version
    with access_policy);

row!(AccessPolicy: room_opens_before_secs, room_per_second, room_turn_secs, room_overbooking,
    purchase_pass, challenge_bits);

row!(Order: id, sale_id, sale_title, user_id, status, price_cents, currency, created_at, pay_by,
    paid_at, closed_at, payment);
