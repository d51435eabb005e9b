# frozen_string_literal: true

desc "Write the shell completions from the definition of the command line; a spec compares them"
task :completions do
  require_relative "support/completions"
  Tasks::Completions.new.write
end
