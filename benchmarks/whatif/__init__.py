"""One recorded run tells what others take: predicted, and measured."""
