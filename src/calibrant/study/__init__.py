"""Studies: a grid of trainings that runs, resumes and reports."""
