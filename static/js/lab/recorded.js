// A race as it was, for /lab/why where there is no server. Made by scripts/record_race.mjs.

export const RUN = {
  "day": "2026-11-24",
  "naive": {
    "sold": [
      42,
      66,
      66,
      66,
      66,
      66,
      67,
      67
    ],
    "verdict": {
      "sold": 67,
      "oversold": 57,
      "collision": {
        "place": "the stock is read",
        "at_ms": 7.62,
        "buyers": [
          "buyer-7",
          "buyer-2"
        ],
        "a": {
          "buyer": "buyer-7",
          "node": 0,
          "began_ms": 4.76,
          "sold_ms": 46.24,
          "order_id": "3c4b994da08542a6a952354ca8faa530"
        },
        "b": {
          "buyer": "buyer-2",
          "node": 0,
          "began_ms": 0.7,
          "sold_ms": 41.35,
          "order_id": "afda7341991d4ad5abfa7b04fe70b591"
        }
      }
    },
    "marks": [
      {
        "kind": "flaw",
        "words": "two buyers read the same number here, before either writes",
        "file": "crates/lab/src/strategies/naive.rs",
        "first_line": 12,
        "marked_line": 18,
        "code": "async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {\n    let mut sql = bench.sql().await?;\n    if bench.has_bought(&mut sql, buyer).await? {\n        return Ok(Outcome::Duplicate);\n    }\n    const READ: &str = \"SELECT remaining FROM lab.stock WHERE arena = $1 AND item = 'thing'\";\n    //= FLAW two buyers read the same number here, before either writes\n    let remaining: i32 = sql.one(READ, (bench.arena(),)).await?;\n    if remaining < 1 {\n        return Ok(Outcome::SoldOut);\n    }\n\n    bench.interleave(\"the stock is read\").await; // somebody else reads the same number\n\n    const WRITE: &str =\n        \"UPDATE lab.stock SET remaining = $2 WHERE arena = $1 AND item = 'thing'\";\n    sql.run(WRITE, (bench.arena(), remaining - 1)).await?;\n    bench.crash_point(\"the stock is written\").await;\n    bench.write_order(&mut sql, buyer).await\n}"
      }
    ]
  },
  "conditional-update": {
    "sold": [
      0,
      0,
      0,
      0,
      0,
      3,
      10,
      10,
      10
    ],
    "verdict": {
      "sold": 10,
      "oversold": 0,
      "collision": null
    },
    "marks": [
      {
        "kind": "cure",
        "words": "checks and writes in one step: nobody can come in between",
        "file": "crates/lab/src/strategies/conditional_update.rs",
        "first_line": 12,
        "marked_line": 16,
        "code": "async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {\n    let sale = bench.in_transaction(async |tx| {\n        const TAKE: &str = \"UPDATE lab.stock SET remaining = remaining - 1\n                             WHERE arena = $1 AND item = 'thing' AND remaining > 0\";\n        //= CURE checks and writes in one step: nobody can come in between\n        if tx.run(TAKE, (bench.arena(),)).await? == 0 {\n            return Ok(Outcome::SoldOut);\n        }\n        bench.crash_point(\"the stock is written\").await;\n\n        bench.interleave(\"the stock is taken\").await; // nobody else takes one before the commit\n\n        // After the update: the row is ours until the commit, so nobody is buying meanwhile.\n        if bench.has_bought(tx, buyer).await? {\n            return Ok(Outcome::Duplicate); // rolled back, and the unit with it\n        }\n        bench.write_order(tx, buyer).await\n    });\n    let outcome = sale.await;\n    bench.crash_point(\"committed\").await;\n    outcome\n}"
      }
    ]
  }
};
