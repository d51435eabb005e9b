# frozen_string_literal: true

namespace :package do
  # A package directory of an earlier build would be taken as it is.
  task :clean do
    rm_rf Dir["pkg/#{GEMSPEC.name}-*/"], verbose: false
  end

  desc "Install the precompiled gem into an empty GEM_HOME without Rust on the PATH, and use it"
  task check: %i[native gem] do
    require_relative "support/package_check"
    Tasks::PackageCheck.new(GEMSPEC).run
  end
end

desc "Write the licenses of the crates that the extension is built from into THIRD_PARTY_NOTICES.md"
task :notices do
  require_relative "support/notices"
  Tasks::Notices.new.write
end

Rake::Task["gem"].prerequisites.unshift("package:clean")
