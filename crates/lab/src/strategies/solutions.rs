//! The solutions of docs/exercises.md, for the tests to grade.

#[path = "../../../../docs/exercises/solution_1.rs"]
mod solution_1;
#[path = "../../../../docs/exercises/solution_2.rs"]
mod solution_2;
#[path = "../../../../docs/exercises/solution_3.rs"]
mod solution_3;
#[path = "../../../../docs/exercises/solution_4.rs"]
mod solution_4;
#[path = "../../../../docs/exercises/solution_5.rs"]
mod solution_5;
#[path = "../../../../docs/exercises/solution_6.rs"]
mod solution_6;
#[path = "../../../../docs/exercises/solution_7.rs"]
mod solution_7;
#[path = "../../../../docs/exercises/solution_8.rs"]
mod solution_8;

// Each is called my-idea in its file, as the reader's is.
strategies![
    "../../../../docs/exercises/";
    solution_1 as "solution-1",
    solution_2 as "solution-2",
    solution_3 as "solution-3",
    solution_4 as "solution-4",
    solution_5 as "solution-5",
    solution_6 as "solution-6",
    solution_7 as "solution-7",
    solution_8 as "solution-8",
];
