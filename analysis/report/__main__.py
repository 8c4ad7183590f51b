"""`python -m analysis report RESULTS...`"""

from analysis.report.command import main
from terminal import program

if __name__ == "__main__":
    program.run(main)
