# frozen_string_literal: true

require "yard"

desc "Write the API documentation into doc/"
YARD::Rake::YardocTask.new(:doc)

namespace :doc do
  desc "Fail unless every public method is documented, and every documented one exists"
  task :coverage do
    require_relative "support/doc_coverage"
    Tasks::DocCoverage.new.run
  end

  desc "Run the examples of README, docs/, YARD comments and examples/"
  task :examples do
    require_relative "support/doc_examples"
    Tasks::DocExamples.new.run
  end
end
