# frozen_string_literal: true

desc "Write the tiny checkpoints as whole folders to tmp/fixtures; their weights are computed"
task :fixtures do
  require_relative "../spec/support/tiny_folder"
  puts TinyFolder.path
end
